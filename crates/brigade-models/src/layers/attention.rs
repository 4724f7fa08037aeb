//! Attention with dropout of its probabilities.

use brigade_kernels::{Mask, attention, attention_through};
use burn::nn::Dropout;
use burn::tensor::Tensor;

/// [`attention`], in training with dropout if there is any.
pub(crate) fn attend([q, k, v]: [Tensor<4>; 3], mask: Mask, scale: f64, dropout: &Dropout) -> Tensor<4> {
    match dropout.prob > 0.0 && q.device().is_autodiff() {
        false => attention(q, k, v, mask, scale),
        true => attention_through(q, k, v, &mask, scale, |probabilities| dropout.forward(probabilities)),
    }
}
