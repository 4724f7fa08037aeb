//! Activations of linear layers.

pub use brigade_simd::activation::ActivationFunction;

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, gelu_approximate, relu, silu};

/// An activation by itself, by Burn's operations.
pub fn activate<const D: usize>(x: Tensor<D>, activation: ActivationFunction) -> Tensor<D> {
    match activation {
        ActivationFunction::Gelu => gelu(x),
        ActivationFunction::GeluTanh => gelu_approximate(x),
        ActivationFunction::Silu => silu(x),
        ActivationFunction::Relu => relu(x),
    }
}
