//! The feed-forward part of a layer with a first bias, whose gradient comes with the activation's.

use burn_autodiff::NodeId;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use crate::autodiff::deferred_products::leave;
use crate::autodiff::graph::Operation;
use crate::cube::activation::slope_and_sums;
use crate::cube::launch::{reshaped, rows};
use crate::cube::linear;
use crate::cube::linear::products::product;
use crate::feed_forward::FeedForward;
use crate::linear::Linear;

#[derive(Debug, Clone)]
pub(crate) struct Saved {
    up: linear::Saved,
    down: linear::Saved,
}

impl FeedForward {
    /// Whether it gains from being one operation.
    pub(crate) fn is_one(self) -> bool {
        self.up.bias
    }
}

impl<const N: usize> Operation<N, CubeTensor> for FeedForward {
    type Saved = Saved;
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; N], _: [bool; N]) -> (CubeTensor, Option<Saved>, ()) {
        let given = self.inputs(inputs);
        let up = Linear { activation: Some(self.activation), ..self.up };
        let (activated, of_up, ()) = run(up, [Some(given.x), Some(given.up), given.up_bias, None]);
        let own = [Some(activated), Some(given.down), given.down_bias, given.residual];
        let (output, of_down, ()) = run(self.down, own);
        (output, of_up.zip(of_down).map(|(up, down)| Saved { up, down }), ())
    }

    fn backward(self, saved: Saved, gradient: CubeTensor, wanted: [bool; N]) -> [Option<CubeTensor>; N] {
        self.backward_or_leave(saved, gradient, wanted, [None; N])
    }

    fn backward_or_leave(
        self,
        saved: Saved,
        gradient: CubeTensor,
        wanted: [bool; N],
        leaves: [Option<NodeId>; N],
    ) -> [Option<CubeTensor>; N] {
        let Saved { up, down } = saved;
        let Some(hidden) = up.hidden else { unreachable!("the layer up has an activation") };
        let (wanted, leaves) = (self.inputs(wanted), self.inputs(leaves));
        let mut shape = gradient.meta.shape().clone();
        if let Some(last) = shape.last_mut() {
            *last = up.x.meta.shape()[1];
        }
        let (gradient, [count, outputs]) = rows(into_contiguous(gradient));
        let whole = gradient.clone();
        let gradient = reshaped(gradient, [count, outputs]);
        let of_down_bias = wanted.down_bias == Some(true);
        let of_down =
            wanted.down && leave(leaves.down, self.down.weight_product(&gradient, &down.x)).is_some();
        let [_, d_down, d_down_bias] =
            self.down.gradients(&gradient, [&down.x, &down.weight], [false, of_down, of_down_bias]);
        let (left, right) = self.down.factors_of_input(&gradient, &down.weight);
        let d_activated = product(left, right, hidden.dtype);
        let [d_hidden, d_up_bias] = slope_and_sums(hidden, d_activated, self.activation);
        let of_up = wanted.up && leave(leaves.up, self.up.weight_product(&d_hidden, &up.x)).is_some();
        let [d_x, d_up, _] = self.up.gradients(&d_hidden, [&up.x, &up.weight], [wanted.x, of_up, false]);
        let d_x = d_x.map(|d_x| reshaped(rows(d_x).0, shape));
        let d_up_bias = wanted.up_bias.map(|is_wanted| is_wanted.then_some(d_up_bias));
        let d_residual = wanted.residual.map(|is_wanted| is_wanted.then_some(whole));
        let found = [Some(d_x), Some(d_up), d_up_bias, Some(d_down)].into_iter();
        let found = found.chain([self.down.bias.then_some(d_down_bias), d_residual]);
        let mut found = found.flatten();
        std::array::from_fn(|_| found.next().flatten())
    }
}

/// A linear layer of the inputs that there are.
fn run(layer: Linear, inputs: [Option<CubeTensor>; 4]) -> (CubeTensor, Option<linear::Saved>, ()) {
    let inputs: Vec<_> = inputs.into_iter().flatten().collect();
    match <[CubeTensor; 2]>::try_from(inputs) {
        Ok(inputs) => layer.forward(inputs, [true; 2]),
        Err(inputs) => match <[CubeTensor; 3]>::try_from(inputs) {
            Ok(inputs) => layer.forward(inputs, [true; 3]),
            Err(inputs) => match <[CubeTensor; 4]>::try_from(inputs) {
                Ok(inputs) => layer.forward(inputs, [true; 4]),
                Err(inputs) => unreachable!("{} inputs of a linear layer", inputs.len()),
            },
        },
    }
}
