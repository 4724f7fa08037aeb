//! Linear layers.

use burn::tensor::{DType, Tensor};
use burn_autodiff::NodeId;
use burn_flex::FlexTensor;

use brigade_simd::{Matrix, MatrixMut, Product, matmul};

use crate::activation::{self, Activation};
use crate::host::{
    Buffer, FusedOperation, Number, WeightProduct, apply, contiguous, forward_strides, leave, matrix, rows,
    values,
};

/// The weight of a linear layer.
#[derive(Debug, Clone)]
pub enum Weight {
    /// `[inputs, outputs]`, as Burn's layers have it. Tensors are taken for that.
    Plain(Tensor<2>),
    /// `[outputs, inputs]`, as PyTorch's layers have it. So is its gradient.
    Transposed(Tensor<2>),
}

impl From<Tensor<2>> for Weight {
    fn from(weight: Tensor<2>) -> Self {
        Self::Plain(weight)
    }
}

/// `x · weight + bias`. `x`: `[…, inputs]`; `weight`: `[inputs, outputs]`, or [`Weight::Transposed`]; `bias`: `[outputs]`.
///
/// The gradients of weight and bias are computed in one piece each, with sums over rows in fp32, in an order that only the shapes decide.
///
/// # Panics
/// If the shapes do not fit.
pub fn linear<const D: usize>(x: Tensor<D>, weight: impl Into<Weight>, bias: Option<Tensor<1>>) -> Tensor<D> {
    Linear::default().call(x, weight.into(), bias, None)
}

/// `activation(x · weight + bias)`, with shapes as of [`linear`].
///
/// # Panics
/// If the shapes do not fit.
pub fn linear_activation<const D: usize>(
    x: Tensor<D>,
    weight: impl Into<Weight>,
    bias: Option<Tensor<1>>,
    activation: Activation,
) -> Tensor<D> {
    Linear { activation: Some(activation), ..Linear::default() }.call(x, weight.into(), bias, None)
}

/// `residual + x · weight + bias`, with shapes as of [`linear`]; `residual`: `[…, outputs]`.
///
/// # Panics
/// If the shapes do not fit.
pub fn linear_residual<const D: usize>(
    x: Tensor<D>,
    weight: impl Into<Weight>,
    bias: Option<Tensor<1>>,
    residual: Tensor<D>,
) -> Tensor<D> {
    Linear::default().call(x, weight.into(), bias, Some(residual))
}

/// Its inputs are x, weight, and those of bias and residual that there are.
#[derive(Debug, Clone, Copy, Default)]
struct Linear {
    /// Whether the weight is `[outputs, inputs]`.
    transposed: bool,
    activation: Option<Activation>,
    bias: bool,
    residual: bool,
}

impl Linear {
    fn call<const D: usize>(
        mut self,
        x: Tensor<D>,
        weight: Weight,
        bias: Option<Tensor<1>>,
        residual: Option<Tensor<D>>,
    ) -> Tensor<D> {
        let weight = match weight {
            Weight::Plain(weight) => weight,
            Weight::Transposed(weight) => {
                self.transposed = true;
                weight
            }
        };
        (self.bias, self.residual) = (bias.is_some(), residual.is_some());
        let [inputs, outputs] = self.shape(weight.dims());
        assert!(
            D > 0 && x.dims()[D - 1] == inputs,
            "a weight for {inputs} inputs and {outputs} outputs takes no input of {:?}",
            x.dims()
        );
        if let Some(bias) = &bias {
            assert!(bias.dims() == [outputs], "a bias of {:?} for {outputs} outputs", bias.dims());
        }
        if let Some(residual) = &residual {
            let mut expected = x.dims();
            expected[D - 1] = outputs;
            assert!(
                residual.dims() == expected,
                "a residual of {:?} for outputs of {expected:?}",
                residual.dims()
            );
        }
        let tensors = [x.clone().into_dispatch(), weight.clone().into_dispatch()].into_iter();
        let tensors = tensors.chain(bias.clone().map(Tensor::into_dispatch));
        let tensors: Vec<_> = tensors.chain(residual.clone().map(Tensor::into_dispatch)).collect();
        let fused = match tensors.as_slice() {
            [x, weight] => apply(self, [x, weight]),
            [x, weight, a] => apply(self, [x, weight, a]),
            [x, weight, a, b] => apply(self, [x, weight, a, b]),
            _ => None,
        };
        match fused {
            Some((output, ())) => Tensor::from_dispatch(output),
            None => self.plain(x, weight, bias, residual),
        }
    }

    /// Inputs and outputs of a weight of this shape.
    fn shape(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        if self.transposed { [columns, rows] } else { [rows, columns] }
    }

    /// The weight as `[inputs, outputs]`.
    fn matrix<T: Number>(self, weight: &FlexTensor) -> Matrix<'_, T> {
        if self.transposed { matrix(weight).transposed() } else { matrix(weight) }
    }

    /// By Burn's operations.
    fn plain<const D: usize>(
        self,
        x: Tensor<D>,
        weight: Tensor<2>,
        bias: Option<Tensor<1>>,
        residual: Option<Tensor<D>>,
    ) -> Tensor<D> {
        let weight = if self.transposed { weight.transpose() } else { weight };
        let y = burn::tensor::module::linear(x, weight, bias);
        let y = match self.activation {
            Some(activation) => activation::plain(activation, y),
            None => y,
        };
        residual.into_iter().fold(y, |y, residual| residual + y)
    }
}

#[derive(Debug, Clone)]
struct Saved {
    x: FlexTensor,
    weight: FlexTensor,
    /// What went into the activation.
    hidden: Option<FlexTensor>,
}

impl<const N: usize> FusedOperation<N> for Linear {
    type Saved = Saved;
    type Extra = ();

    fn forward<T: Number>(&self, inputs: [FlexTensor; N], _: bool) -> (FlexTensor, Option<Saved>, ()) {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().unwrap_or_else(|| unreachable!("it has as many inputs as flags"));
        let (x, weight) = (contiguous(next()), forward_strides(next()));
        let bias = self.bias.then(|| contiguous(next()));
        let residual = self.residual.then(|| contiguous(next()));
        let [count, _] = rows(&x);
        let [_, outputs] = self.matrix::<T>(&weight).shape();
        let mut shape = x.layout().shape().clone();
        if let Some(last) = shape.last_mut() {
            *last = outputs;
        }
        let mut y = Buffer::<T>::new(count * outputs);
        // What is there before the product, which is added to it.
        // In fp32 the activation's pass adds the bias; in bf16 that would round twice.
        let bias_after = self.activation.is_some() && T::dtype() == DType::F32;
        let product = match (&residual, bias.as_ref().filter(|_| !bias_after)) {
            (Some(residual), Some(bias)) => {
                brigade_simd::add_rows(values(residual), values(bias), &mut y);
                Product::Add
            }
            (Some(residual), None) => {
                y.copy_from_slice(values(residual));
                Product::Add
            }
            (None, Some(bias)) => {
                y.chunks_exact_mut(outputs.max(1)).for_each(|row| row.copy_from_slice(values(bias)));
                Product::Add
            }
            (None, None) => Product::Write,
        };
        let [a, b] = [matrix::<T>(&x), self.matrix(&weight)];
        matmul(a, b, MatrixMut::rows_of(&mut y, [count, outputs]), product, 1.0);
        let Some(activation) = self.activation else {
            return (y.into_tensor(shape), Some(Saved { x, weight, hidden: None }), ());
        };
        let mut result = Buffer::<T>::new(count * outputs);
        activation.forward(&mut y, bias.as_ref().filter(|_| bias_after).map(values), &mut result);
        let hidden = y.into_tensor(shape.clone());
        (result.into_tensor(shape), Some(Saved { x, weight, hidden: Some(hidden) }), ())
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
        let Saved { x, weight, hidden } = saved;
        let gradient = contiguous(gradient);
        let [count, outputs] = rows(&gradient);
        let [_, inputs] = rows(&x);
        let is_wanted = |index: usize| wanted.get(index).copied().unwrap_or(false);
        let bias_at = self.bias.then_some(2);
        let residual_at = self.residual.then_some(2 + usize::from(self.bias));

        let mut d_bias = bias_at.filter(|at| is_wanted(*at)).map(|_| Buffer::zeros(outputs));
        let d_residual = residual_at.filter(|at| is_wanted(*at)).map(|_| gradient.clone());
        let slope = match (self.activation, hidden) {
            (Some(activation), Some(hidden)) => {
                let mut slope = Buffer::<T>::new(count * outputs);
                activation.backward(values(&hidden), values(&gradient), &mut slope, d_bias.as_deref_mut());
                slope.into_tensor([count, outputs])
            }
            _ => {
                if let Some(sums) = &mut d_bias {
                    brigade_simd::column_sums(values::<T>(&gradient), sums);
                }
                gradient
            }
        };
        let d_x = is_wanted(0).then(|| {
            let slope = Matrix::rows_of(values::<T>(&slope), [count, outputs]);
            let mut d_x = Buffer::<T>::new(count * inputs);
            let out = MatrixMut::rows_of(&mut d_x, [count, inputs]);
            matmul(slope, self.matrix(&weight).transposed(), out, Product::Write, 1.0);
            d_x.into_tensor(x.layout().shape().clone())
        });
        let [left, right] = if self.transposed { [slope, x] } else { [x, slope] };
        let d_weight = is_wanted(1).then_some(WeightProduct { left, right });
        let d_weight = d_weight.and_then(|product| leave(leaves[1], product)).map(WeightProduct::compute);
        let d_bias = d_bias.map(|sums| sums.into_tensor_of::<T>([outputs]));
        let mut found =
            [d_x, d_weight].into_iter().chain(bias_at.map(|_| d_bias)).chain(residual_at.map(|_| d_residual));
        std::array::from_fn(|_| found.next().flatten())
    }
}
