//! Activations of linear layers.

pub use brigade_simd::activation::Activation;

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, gelu_approximate, relu, silu};

/// By Burn's operations.
pub(crate) fn plain<const D: usize>(activation: Activation, x: Tensor<D>) -> Tensor<D> {
    match activation {
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_approximate(x),
        Activation::Silu => silu(x),
        Activation::Relu => relu(x),
    }
}
