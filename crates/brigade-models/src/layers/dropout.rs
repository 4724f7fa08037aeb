//! Dropout between layers.

use brigade_kernels::{dropout, is_fused};
use burn::nn::Dropout;
use burn::tensor::Tensor;

/// Whether a layer drops anything of this tensor: in training, unless it is frozen.
pub(super) fn drops<const D: usize>(x: &Tensor<D>, layer: &Dropout) -> bool {
    layer.prob > 0.0 && layer.training.is_enabled() && x.device().is_autodiff()
}

/// In training `x` with some of its elements dropped.
pub(crate) fn dropped<const D: usize>(x: Tensor<D>, layer: &Dropout) -> Tensor<D> {
    match drops(&x, layer) {
        true if is_fused(&x) => dropout(x, None, layer.prob),
        _ => layer.forward(x),
    }
}

/// `residual + x`, in training with some elements of `x` dropped.
pub(crate) fn dropped_onto<const D: usize>(x: Tensor<D>, residual: Tensor<D>, layer: &Dropout) -> Tensor<D> {
    match drops(&x, layer) {
        true if is_fused(&x) && is_fused(&residual) => dropout(x, Some(residual), layer.prob),
        _ => residual + layer.forward(x),
    }
}
