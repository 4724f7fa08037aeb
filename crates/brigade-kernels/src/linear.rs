//! Linear layers.

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Tensor};
use burn_autodiff::NodeId;
use burn_flex::FlexTensor;

use brigade_simd::{Matrix, MatrixMut, Product, matmul};

use crate::activation::{self, ActivationFunction};
use crate::autodiff::deferred_products::leave;
use crate::host::{
    Buffer, FusedOperation, HostProduct, Number, apply, contiguous, forward_strides, matrix, rows, values,
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
    activation: ActivationFunction,
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

/// In fp32 the pass of an activation adds the bias; in bf16 that would round twice.
pub(crate) fn adds_bias_after<T: Number>() -> bool {
    T::dtype() == DType::F32
}

/// Its inputs are x, weight, and those of bias and residual that there are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Linear {
    /// Whether the weight is `[outputs, inputs]`.
    pub transposed: bool,
    pub activation: Option<ActivationFunction>,
    pub bias: bool,
    pub residual: bool,
}

impl Linear {
    fn call<const D: usize>(
        mut self,
        x: Tensor<D>,
        weight: Weight,
        bias: Option<Tensor<1>>,
        residual: Option<Tensor<D>>,
    ) -> Tensor<D> {
        let weight = self.take(x.dims(), weight, bias.as_ref(), residual.as_ref());
        let tensors = [x.clone().into_dispatch(), weight.clone().into_dispatch()].into_iter();
        let tensors = tensors.chain(bias.clone().map(Tensor::into_dispatch));
        let tensors: Vec<_> = tensors.chain(residual.clone().map(Tensor::into_dispatch)).collect();
        match self.fused(&tensors) {
            Some(output) => Tensor::from_dispatch(output),
            None => self.plain(x, weight, bias, residual),
        }
    }

    /// The operation where there is one for these tensors. It is compiled here, not in each crate with a linear layer.
    fn fused(self, tensors: &[DispatchTensor]) -> Option<DispatchTensor> {
        let fused = match tensors {
            [x, weight] => apply(self, [x, weight]),
            [x, weight, a] => apply(self, [x, weight, a]),
            [x, weight, a, b] => apply(self, [x, weight, a, b]),
            _ => None,
        };
        #[cfg(feature = "cube")]
        let fused = fused.or_else(|| match tensors {
            [x, weight] => crate::cube::apply(self, [x, weight]),
            [x, weight, a] => crate::cube::apply(self, [x, weight, a]),
            [x, weight, a, b] => crate::cube::apply(self, [x, weight, a, b]),
            _ => None,
        });
        fused.map(|(output, ())| output)
    }

    /// Records which parts a layer has whose input has the shape `x`, checks the shapes, and returns the
    /// weight.
    pub fn take<const D: usize>(
        &mut self,
        x: [usize; D],
        weight: Weight,
        bias: Option<&Tensor<1>>,
        residual: Option<&Tensor<D>>,
    ) -> Tensor<2> {
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
            D > 0 && x[D - 1] == inputs,
            "a weight for {inputs} inputs and {outputs} outputs cannot take an input of {x:?}"
        );
        if let Some(bias) = bias {
            assert!(bias.dims() == [outputs], "a bias of {:?} for {outputs} outputs", bias.dims());
        }
        if let Some(residual) = residual {
            let mut expected = x;
            expected[D - 1] = outputs;
            assert!(
                residual.dims() == expected,
                "a residual of {:?} for outputs of {expected:?}",
                residual.dims()
            );
        }
        weight
    }

    /// Inputs and outputs of a weight of this shape.
    pub fn shape(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        if self.transposed { [columns, rows] } else { [rows, columns] }
    }

    /// The weight as `[inputs, outputs]`.
    pub fn matrix<T: Number>(self, weight: &FlexTensor) -> Matrix<'_, T> {
        if self.transposed { matrix(weight).transposed() } else { matrix(weight) }
    }

    /// The product, added to what is given of bias and residual. `x` and they are contiguous, and the weight has forward strides.
    pub fn output<T: Number>(
        self,
        x: &FlexTensor,
        weight: &FlexTensor,
        bias: Option<&FlexTensor>,
        residual: Option<&FlexTensor>,
    ) -> Buffer<T> {
        let ([count, _], weight) = (rows(x), self.matrix::<T>(weight));
        let [_, outputs] = weight.shape();
        let mut y = Buffer::<T>::new(count * outputs);
        // What is there before the product, which is added to it.
        let product = match (residual, bias) {
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
        matmul(matrix::<T>(x), weight, MatrixMut::rows_of(&mut y, [count, outputs]), product, 1.0);
        y
    }

    /// The gradient of `x`, from that of the product.
    pub fn input_gradient<T: Number>(self, slope: &FlexTensor, weight: &FlexTensor) -> Buffer<T> {
        let ([count, outputs], weight) = (rows(slope), self.matrix::<T>(weight));
        let [inputs, _] = weight.shape();
        let slope = Matrix::rows_of(values::<T>(slope), [count, outputs]);
        let mut d_x = Buffer::<T>::new(count * inputs);
        let out = MatrixMut::rows_of(&mut d_x, [count, inputs]);
        matmul(slope, weight.transposed(), out, Product::Write, 1.0);
        d_x
    }

    /// The gradient of the weight, from that of the product; none if it is left for later.
    pub fn weight_gradient(
        self,
        x: FlexTensor,
        slope: FlexTensor,
        leaf: Option<NodeId>,
    ) -> Option<FlexTensor> {
        let [left, right] = if self.transposed { [slope, x] } else { [x, slope] };
        leave(leaf, HostProduct { left, right }).map(|product| product.gradient())
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
            Some(activation) => activation::activate(y, activation),
            None => y,
        };
        residual.into_iter().fold(y, |y, residual| residual + y)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Saved {
    x: FlexTensor,
    weight: FlexTensor,
    /// What went into the activation.
    hidden: Option<FlexTensor>,
}

impl<const N: usize> FusedOperation<N> for Linear {
    type Saved = Saved;
    type Extra = ();

    fn forward<T: Number>(&self, inputs: [FlexTensor; N], _: [bool; N]) -> (FlexTensor, Option<Saved>, ()) {
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
        let bias_after = self.activation.is_some() && adds_bias_after::<T>();
        let bias_before = bias.as_ref().filter(|_| !bias_after);
        let mut y = self.output::<T>(&x, &weight, bias_before, residual.as_ref());
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
        let d_x = is_wanted(0)
            .then(|| self.input_gradient::<T>(&slope, &weight).into_tensor(x.layout().shape().clone()));
        let d_weight = is_wanted(1).then(|| self.weight_gradient(x, slope, leaves[1])).flatten();
        let d_bias = d_bias.map(|sums| sums.into_tensor_of::<T>([outputs]));
        let mut found =
            [d_x, d_weight].into_iter().chain(bias_at.map(|_| d_bias)).chain(residual_at.map(|_| d_residual));
        std::array::from_fn(|_| found.next().flatten())
    }
}
