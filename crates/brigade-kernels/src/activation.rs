//! Activations, by themselves and of gated linear units.

pub use brigade_simd::activation::ActivationFunction;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, gelu_approximate, relu, silu};
use burn_flex::FlexTensor;

use crate::host::{Buffer, FusedOperation, Number, apply, contiguous, values};

/// An activation of each element. After a linear layer, [`linear_activation`](crate::linear_activation) is one pass less.
pub fn activate<const D: usize>(x: Tensor<D>, activation: ActivationFunction) -> Tensor<D> {
    match Activate(activation).fused(&x.clone().into_dispatch()) {
        Some(output) => Tensor::from_dispatch(output),
        None => match activation {
            ActivationFunction::Gelu => gelu(x),
            ActivationFunction::GeluTanh => gelu_approximate(x),
            ActivationFunction::Silu => silu(x),
            ActivationFunction::Relu => relu(x),
        },
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Activate(pub ActivationFunction);

impl Activate {
    /// The operation where there is one for this tensor. It is compiled here, not in each crate with such a layer.
    fn fused(self, x: &DispatchTensor) -> Option<DispatchTensor> {
        let fused = apply(self, [x]);
        #[cfg(feature = "cube")]
        let fused = fused.or_else(|| crate::cube::apply(self, [x]));
        fused.map(|(output, ())| output)
    }
}

impl FusedOperation<1> for Activate {
    type Saved = FlexTensor;
    type Extra = ();

    fn forward<T: Number>(&self, [x]: [FlexTensor; 1], _: [bool; 1]) -> (FlexTensor, Option<FlexTensor>, ()) {
        let x = contiguous(x);
        let mut y = Buffer::<T>::new(x.layout().num_elements());
        self.0.apply(values(&x), &mut y);
        (y.into_tensor(x.layout().shape().clone()), Some(x), ())
    }

    fn backward<T: Number>(
        self,
        x: FlexTensor,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let mut d_x = Buffer::<T>::new(x.layout().num_elements());
        self.0.backward(values(&x), values(&gradient), &mut d_x, None);
        [Some(d_x.into_tensor(x.layout().shape().clone()))]
    }
}

/// `activation(gate) · up`: SwiGLU with SiLU, GeGLU with GELU (Shazeer, "GLU Variants Improve Transformer", 2020).
///
/// # Panics
/// If the shapes differ.
pub fn gated<const D: usize>(gate: Tensor<D>, up: Tensor<D>, activation: ActivationFunction) -> Tensor<D> {
    assert!(
        gate.dims() == up.dims(),
        "`gate` has the shape {:?} and `up` {:?}, but both must have one shape",
        gate.dims(),
        up.dims()
    );
    let tensors = [gate.clone().into_dispatch(), up.clone().into_dispatch()];
    match Gated(activation).fused(&tensors) {
        Some(output) => Tensor::from_dispatch(output),
        None => activate(gate, activation) * up,
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Gated(pub ActivationFunction);

impl Gated {
    /// The operation where there is one for these tensors. It is compiled here, not in each crate with such a layer.
    fn fused(self, tensors: &[DispatchTensor; 2]) -> Option<DispatchTensor> {
        let fused = apply(self, tensors.each_ref());
        #[cfg(feature = "cube")]
        let fused = fused.or_else(|| crate::cube::apply(self, tensors.each_ref()));
        fused.map(|(output, ())| output)
    }
}

impl FusedOperation<2> for Gated {
    type Saved = [FlexTensor; 2];
    type Extra = ();

    fn forward<T: Number>(
        &self,
        inputs: [FlexTensor; 2],
        _: [bool; 2],
    ) -> (FlexTensor, Option<[FlexTensor; 2]>, ()) {
        let [gate, up] = inputs.map(contiguous);
        let mut y = Buffer::<T>::new(gate.layout().num_elements());
        self.0.gated(values(&gate), values(&up), &mut y);
        (y.into_tensor(gate.layout().shape().clone()), Some([gate, up]), ())
    }

    fn backward<T: Number>(
        self,
        saved: [FlexTensor; 2],
        gradient: FlexTensor,
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (gradient, shape) = (contiguous(gradient), saved[0].layout().shape().clone());
        let [gate, up] = saved.each_ref().map(values::<T>);
        let [mut d_gate, mut d_up] = [gate, up].map(|values| Buffer::<T>::new(values.len()));
        self.0.gated_backward(gate, up, values(&gradient), &mut d_gate, &mut d_up);
        [d_gate, d_up].map(|gradient| Some(gradient.into_tensor(shape.clone())))
    }
}
