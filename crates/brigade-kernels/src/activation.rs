//! Activations of linear layers.

pub use brigade_simd::activation::Activation;

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, gelu_approximate, relu, silu};

/// An activation by itself, by Burn's operations.
pub fn activate<const D: usize>(x: Tensor<D>, activation: Activation) -> Tensor<D> {
    match activation {
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_approximate(x),
        Activation::Silu => silu(x),
        Activation::Relu => relu(x),
    }
}
