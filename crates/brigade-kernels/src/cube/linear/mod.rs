//! Linear layers: the product, with what is added to it, or made of it, in one pass if a library does that, else in a second.

pub(crate) mod columns;
pub(crate) mod feed_forward;
pub(crate) mod products;
pub(crate) mod weight_product;

use burn_autodiff::NodeId;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::activation::ActivationFunction;
use crate::autodiff::deferred_products::leave;
use crate::autodiff::graph::Operation;
use crate::cube::activation::{activated, slope};
use crate::cube::launch::{
    element, empty, reshaped, rows, transposed, unit_count, unit_for_each, vector_size,
};
use crate::cube::linear::columns::column_sums;
use crate::cube::linear::products::{Epilogue, product, products, products_with};
use crate::cube::linear::weight_product::CubeProduct;
use crate::linear::Linear;

/// The input as rows, the weight, and what went into the activation.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub x: CubeTensor,
    pub weight: CubeTensor,
    pub hidden: Option<CubeTensor>,
}

/// Its inputs are x, the weight, the bias and the residual: those that there are.
impl<const N: usize> Operation<N, CubeTensor> for Linear {
    type Saved = Saved;
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; N], _: [bool; N]) -> (CubeTensor, Option<Saved>, ()) {
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
        let (output, hidden) = match self.by_epilogue([&x, &matrix], bias.as_ref(), residual.as_ref()) {
            Some(found) => found,
            None => {
                let (y, _) = rows(product(x.clone(), matrix, x.dtype));
                match self.activation {
                    Some(activation) => (activated(&y, bias.as_ref(), activation), Some(y)),
                    None => {
                        add_rows(&y, bias, residual);
                        (y, None)
                    }
                }
            }
        };
        (reshaped(output, shape), Some(Saved { x, weight, hidden }), ())
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
        let of_weight = is_wanted(1) && leave(leaves[1], self.weight_product(&gradient, &x)).is_some();
        let of_bias = self.bias && is_wanted(2);
        let [d_x, d_weight, d_bias] =
            self.gradients(&gradient, [&x, &weight], [is_wanted(0), of_weight, of_bias]);
        let d_x = d_x.map(|d_x| reshaped(rows(d_x).0, shape));
        let d_residual = self.residual.then(|| is_wanted(2 + usize::from(self.bias)).then_some(whole));
        let mut found = [d_x, d_weight].into_iter().chain(self.bias.then_some(d_bias)).chain(d_residual);
        std::array::from_fn(|_| found.next().flatten())
    }
}

impl Linear {
    /// The output, and what went into the activation, if a library makes all of it with the product.
    fn by_epilogue(
        self,
        [x, matrix]: [&CubeTensor; 2],
        bias: Option<&CubeTensor>,
        residual: Option<&CubeTensor>,
    ) -> Option<(CubeTensor, Option<CubeTensor>)> {
        let (epilogue, hidden) = match (self.activation, bias, residual) {
            (None, None, None) => return None,
            (None, bias, residual) => {
                (Epilogue::Sum { bias: bias.cloned(), residual: residual.cloned() }, None)
            }
            (Some(ActivationFunction::GeluTanh), Some(bias), None) => {
                let hidden = empty(x, [x.meta.shape()[0], matrix.meta.shape()[1]], x.dtype);
                (Epilogue::Gelu { bias: bias.clone(), hidden: hidden.clone() }, Some(hidden))
            }
            _ => return None,
        };
        let [output] = products_with([(x.clone(), matrix.clone(), epilogue)])?;
        Some((output, hidden))
    }

    /// The gradients of input, weight and bias that are wanted, from that of `x · weight + bias`. All are rows.
    pub(crate) fn gradients(
        self,
        gradient: &CubeTensor,
        [x, weight]: [&CubeTensor; 2],
        [of_x, of_weight, of_bias]: [bool; 3],
    ) -> [Option<CubeTensor>; 3] {
        let d_x = of_x.then(|| self.factors_of_input(gradient, weight));
        let d_weight = of_weight.then(|| self.weight_product(gradient, x).factors());
        if let (true, Some((left, right))) = (of_bias, &d_weight) {
            let sums = empty(gradient, [gradient.meta.shape()[1]], x.dtype);
            let epilogue =
                if self.transposed { Epilogue::LeftSums } else { Epilogue::RightSums }(sums.clone());
            let with_sums = (left.clone(), right.clone(), epilogue);
            let made = match &d_x {
                None => products_with([with_sums]).map(|[d_weight]| (None, d_weight)),
                Some((left, right)) => {
                    let plain = (left.clone(), right.clone(), Epilogue::None);
                    products_with([plain, with_sums]).map(|[d_x, d_weight]| (Some(d_x), d_weight))
                }
            };
            if let Some((d_x, d_weight)) = made {
                return [d_x, Some(d_weight), Some(sums)];
            }
        }
        let one = |factors: (CubeTensor, CubeTensor)| product(factors.0, factors.1, x.dtype);
        let (d_x, d_weight) = match (d_x, d_weight) {
            (Some(of_x), Some(of_weight)) => {
                let [d_x, d_weight] = products([of_x, of_weight], x.dtype);
                (Some(d_x), Some(d_weight))
            }
            (d_x, d_weight) => (d_x.map(one), d_weight.map(one)),
        };
        [d_x, d_weight, of_bias.then(|| column_sums(gradient.clone(), x.dtype))]
    }

    /// The gradient of the weight, from that of `x · weight`. Both are rows.
    pub(crate) fn weight_product(self, gradient: &CubeTensor, x: &CubeTensor) -> CubeProduct {
        let (gradient, x) = (gradient.clone(), x.clone());
        let (left, right) = if self.transposed { (gradient, x) } else { (x, gradient) };
        CubeProduct { left, right }
    }

    /// The factors of the input's gradient.
    pub(crate) fn factors_of_input(
        self,
        gradient: &CubeTensor,
        weight: &CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let weight = if self.transposed { weight.clone() } else { transposed(weight.clone()) };
        (gradient.clone(), weight)
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
