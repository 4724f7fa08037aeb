//! The feed-forward part of a layer.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use burn_autodiff::NodeId;
use burn_flex::FlexTensor;

use crate::activation::ActivationFunction;
use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, forward_strides, rows, values};
use crate::linear::{Linear, Weight, adds_bias_after, linear, linear_activation, linear_residual};

/// `residual + activation(x · up + up_bias) · down + down_bias`, of a residual and biases that there are, with shapes as of [`linear`](crate::linear()).
///
/// It has the bits of [`linear_activation`] and [`linear_residual`], but keeps only what goes into the activation for the backward pass, which makes what comes out of it again
/// beside the slope.
///
/// # Panics
/// If the shapes do not fit.
pub fn feed_forward<const D: usize>(
    x: Tensor<D>,
    (up, up_bias): (impl Into<Weight>, Option<Tensor<1>>),
    activation: ActivationFunction,
    (down, down_bias): (impl Into<Weight>, Option<Tensor<1>>),
    residual: Option<Tensor<D>>,
) -> Tensor<D> {
    let (up, down) = (up.into(), down.into());
    let mut operation = FeedForward { up: Linear::default(), activation, down: Linear::default() };
    let up_weight = operation.up.take(x.dims(), up.clone(), up_bias.as_ref(), None);
    let [_, inner] = operation.up.shape(up_weight.dims());
    let mut dims = x.dims();
    dims[D - 1] = inner;
    let down_weight = operation.down.take(dims, down.clone(), down_bias.as_ref(), residual.as_ref());
    let own = [Some(x.clone().into_dispatch()), Some(up_weight.into_dispatch())].into_iter();
    let own = own.chain([up_bias.clone().map(Tensor::into_dispatch), Some(down_weight.into_dispatch())]);
    let given = [down_bias.clone().map(Tensor::into_dispatch), residual.clone().map(Tensor::into_dispatch)];
    let tensors: Vec<_> = own.chain(given).flatten().collect();
    if let Some(output) = operation.fused(&tensors) {
        return Tensor::from_dispatch(output);
    }
    let hidden = linear_activation(x, up, up_bias, activation);
    match residual {
        None => linear(hidden, down, down_bias),
        Some(residual) => linear_residual(hidden, down, down_bias, residual),
    }
}

/// Its inputs are x, the weight up, its bias, the weight down, its bias, and the residual: those that there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeedForward {
    pub up: Linear,
    pub activation: ActivationFunction,
    pub down: Linear,
}

/// What there is of each of its inputs.
pub(crate) struct Inputs<T> {
    pub x: T,
    pub up: T,
    pub up_bias: Option<T>,
    pub down: T,
    pub down_bias: Option<T>,
    pub residual: Option<T>,
}

impl FeedForward {
    /// The operation where there is one for these tensors. It is compiled here, not in each crate with such a layer.
    fn fused(self, tensors: &[DispatchTensor]) -> Option<DispatchTensor> {
        let fused = match tensors {
            [x, up, down] => apply(self, [x, up, down]),
            [x, up, a, b] => apply(self, [x, up, a, b]),
            [x, up, a, b, c] => apply(self, [x, up, a, b, c]),
            [x, up, a, b, c, d] => apply(self, [x, up, a, b, c, d]),
            _ => None,
        };
        #[cfg(feature = "cube")]
        let fused = fused.or_else(|| match tensors {
            _ if !self.is_one() => None,
            [x, up, a, b] => crate::cube::apply(self, [x, up, a, b]),
            [x, up, a, b, c] => crate::cube::apply(self, [x, up, a, b, c]),
            [x, up, a, b, c, d] => crate::cube::apply(self, [x, up, a, b, c, d]),
            _ => None,
        });
        fused.map(|(output, ())| output)
    }

    pub(crate) fn inputs<T, const N: usize>(self, inputs: [T; N]) -> Inputs<T> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().unwrap_or_else(|| unreachable!("it has as many inputs as flags"));
        Inputs {
            x: next(),
            up: next(),
            up_bias: self.up.bias.then(&mut next),
            down: next(),
            down_bias: self.down.bias.then(&mut next),
            residual: self.down.residual.then(&mut next),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Saved {
    x: FlexTensor,
    up: FlexTensor,
    /// What went into the activation, `[rows, inner]`.
    hidden: FlexTensor,
    down: FlexTensor,
}

impl<const N: usize> FusedOperation<N> for FeedForward {
    type Saved = Saved;
    type Extra = ();

    fn forward<T: Number>(&self, inputs: [FlexTensor; N], _: [bool; N]) -> (FlexTensor, Option<Saved>, ()) {
        let Inputs { x, up, up_bias, down, down_bias, residual } = self.inputs(inputs);
        let (x, up, down) = (contiguous(x), forward_strides(up), forward_strides(down));
        let [up_bias, down_bias, residual] = [up_bias, down_bias, residual].map(|part| part.map(contiguous));
        let [count, _] = rows(&x);
        let (before, after) = match adds_bias_after::<T>() {
            true => (None, up_bias.as_ref()),
            false => (up_bias.as_ref(), None),
        };
        let mut hidden = self.up.output::<T>(&x, &up, before, None);
        let [_, inner] = self.up.matrix::<T>(&up).shape();
        let mut activated = Buffer::<T>::new(hidden.len());
        self.activation.forward(&mut hidden, after.map(values), &mut activated);
        let activated = activated.into_tensor([count, inner]);
        let y = self.down.output::<T>(&activated, &down, down_bias.as_ref(), residual.as_ref());
        let mut shape = x.layout().shape().clone();
        if let Some(last) = shape.last_mut() {
            *last = self.down.matrix::<T>(&down).shape()[1];
        }
        let hidden = hidden.into_tensor([count, inner]);
        (y.into_tensor(shape), Some(Saved { x, up, hidden, down }), ())
    }

    fn backward<T: Number>(
        self,
        saved: Saved,
        gradient: FlexTensor,
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N] {
        self.backward_or_leave::<T>(saved, gradient, wanted, [None; N])
    }

    fn backward_or_leave<T: Number>(
        self,
        saved: Saved,
        gradient: FlexTensor,
        wanted: [bool; N],
        leaves: [Option<NodeId>; N],
    ) -> [Option<FlexTensor>; N] {
        let Saved { x, up, mut hidden, down } = saved;
        let gradient = contiguous(gradient);
        let (wanted, leaves) = (self.inputs(wanted), self.inputs(leaves));
        let [count, outputs] = rows(&gradient);
        let [_, inner] = self.up.matrix::<T>(&up).shape();

        let d_down_bias = wanted.down_bias.filter(|is_wanted| *is_wanted).map(|_| {
            let mut sums = Buffer::zeros(outputs);
            brigade_simd::column_sums(values::<T>(&gradient), &mut sums);
            sums.into_tensor_of::<T>([outputs])
        });
        let d_residual = wanted.residual.filter(|is_wanted| *is_wanted).map(|_| gradient.clone());
        let mut slope = self.down.input_gradient::<T>(&gradient, &down);
        let mut d_up_bias =
            wanted.up_bias.filter(|is_wanted| *is_wanted).map(|_| Buffer::<f32>::zeros(inner));
        self.activation.backward_again(hidden.storage_mut::<T>(), &mut slope, d_up_bias.as_deref_mut());
        let (activated, slope) = (hidden, slope.into_tensor([count, inner]));
        let d_down = wanted.down.then(|| self.down.weight_gradient(activated, gradient, leaves.down));
        let d_x = wanted
            .x
            .then(|| self.up.input_gradient::<T>(&slope, &up).into_tensor(x.layout().shape().clone()));
        let d_up = wanted.up.then(|| self.up.weight_gradient(x, slope, leaves.up));

        let d_up_bias = d_up_bias.map(|sums| sums.into_tensor_of::<T>([inner]));
        let found = [Some(d_x), Some(d_up.flatten())].into_iter();
        let found = found.chain([self.up.bias.then_some(d_up_bias), Some(d_down.flatten())]);
        let found =
            found.chain([self.down.bias.then_some(d_down_bias), self.down.residual.then_some(d_residual)]);
        let mut found = found.flatten();
        std::array::from_fn(|_| found.next().flatten())
    }
}
