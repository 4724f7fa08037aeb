//! Linear layers: the product by Burn's kernels, and what is added to it, or made of it, in one pass.

use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::activation::{activated, slope};
use super::columns::column_sums;
use super::launch::{element, empty, reshaped, rows, transposed, unit_count, unit_for_each, vector_size};
use super::products::{product, products};
use crate::graph::Operation;
use crate::linear::Linear;

#[derive(Debug, Clone)]
pub(crate) struct Saved {
    x: CubeTensor,
    weight: CubeTensor,
    /// What went into the activation.
    hidden: Option<CubeTensor>,
}

/// Its inputs are x, the weight, the bias and the residual: those that there are.
impl<const N: usize> Operation<N, CubeTensor> for Linear {
    type Saved = Saved;
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; N], _: bool) -> (CubeTensor, Option<Saved>, ()) {
        let mut inputs = inputs.into_iter();
        let (Some(x), Some(weight)) = (inputs.next(), inputs.next()) else {
            unreachable!("it has an input and a weight")
        };
        let bias = if self.bias { inputs.next().map(|bias| rows(bias).0) } else { None };
        let residual = if self.residual { inputs.next().map(|residual| rows(residual).0) } else { None };
        let mut shape = x.meta.shape().clone();
        let (x, [count, inputs]) = rows(x);
        let x = reshaped(x, [count, inputs]);
        let matrix = if self.transposed { transposed(weight.clone()) } else { weight.clone() };
        let outputs = matrix.meta.shape()[1];
        if let Some(last) = shape.last_mut() {
            *last = outputs;
        }
        let (y, _) = rows(product(x.clone(), matrix, x.dtype));
        let (output, hidden) = match self.activation {
            Some(activation) => (activated(&y, bias.as_ref(), activation), Some(y)),
            None => {
                add_rows(&y, bias, residual);
                (y, None)
            }
        };
        (reshaped(output, shape), Some(Saved { x, weight, hidden }), ())
    }

    fn backward(self, saved: Saved, gradient: CubeTensor, wanted: [bool; N]) -> [Option<CubeTensor>; N] {
        let Saved { x, weight, hidden } = saved;
        let is_wanted = |index: usize| wanted.get(index).copied().unwrap_or(false);
        let mut shape = gradient.meta.shape().clone();
        if let Some(last) = shape.last_mut() {
            *last = x.meta.shape()[1];
        }
        let (gradient, [count, outputs]) = rows(gradient);
        let whole = gradient.clone();
        let gradient = match (self.activation, hidden) {
            (Some(activation), Some(hidden)) => slope(hidden, gradient, activation),
            _ => gradient,
        };
        let gradient = reshaped(gradient, [count, outputs]);
        let of_x =
            || (gradient.clone(), if self.transposed { weight.clone() } else { transposed(weight.clone()) });
        let of_weight = || match self.transposed {
            true => (transposed(gradient.clone()), x.clone()),
            false => (transposed(x.clone()), gradient.clone()),
        };
        let one = |factors: (CubeTensor, CubeTensor)| Some(product(factors.0, factors.1, x.dtype));
        let (d_x, d_weight) = match (is_wanted(0), is_wanted(1)) {
            (true, true) => {
                let [d_x, d_weight] = products([of_x(), of_weight()], x.dtype);
                (Some(d_x), Some(d_weight))
            }
            (x, weight) => (x.then(of_x).and_then(one), weight.then(of_weight).and_then(one)),
        };
        let d_x = d_x.map(|d_x| reshaped(rows(d_x).0, shape));
        let d_bias = self.bias.then(|| is_wanted(2).then(|| column_sums(gradient, x.dtype)));
        let d_residual = self.residual.then(|| is_wanted(2 + usize::from(self.bias)).then_some(whole));
        let mut found = [d_x, d_weight].into_iter().chain(d_bias).chain(d_residual);
        std::array::from_fn(|_| found.next().flatten())
    }
}

/// Adds the bias and the residual, if present, to rows in place.
fn add_rows(y: &CubeTensor, bias: Option<CubeTensor>, residual: Option<CubeTensor>) {
    if bias.is_none() && residual.is_none() {
        return;
    }
    let (y, [count, width]) = rows(y.clone());
    let vector = vector_size(&[&y], width);
    let (cubes, units) = unit_for_each(count * width / vector);
    let (has_bias, has_residual) = (bias.is_some(), residual.is_some());
    // What is not read can be any tensor but those that are written.
    let spare = || empty(&y, [width], y.dtype);
    // SAFETY: it reads and writes `count` rows of `width` elements, which the tensors have.
    unsafe {
        add_rows_kernel::launch_unchecked(
            &y.client,
            cubes,
            units,
            y.required_address_type(),
            vector,
            y.clone().into_buffer_arg(),
            bias.unwrap_or_else(spare).into_buffer_arg(),
            residual.unwrap_or_else(spare).into_buffer_arg(),
            count * width / vector,
            width / vector,
            has_bias,
            has_residual,
            element(&y),
        );
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn add_rows_kernel<T: Float, N: Size>(
    y: &mut [Vector<T, N>],
    bias: &[Vector<T, N>],
    residual: &[Vector<T, N>],
    elements: usize,
    #[comptime] width: usize,
    #[comptime] has_bias: bool,
    #[comptime] has_residual: bool,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let mut value = Vector::<f32, N>::cast_from(y[index]);
        if comptime!(has_bias) {
            value += Vector::cast_from(bias[index % width]);
        }
        if comptime!(has_residual) {
            value += Vector::cast_from(residual[index]);
        }
        y[index] = Vector::cast_from(value);
        index += unit_count();
    }
}
