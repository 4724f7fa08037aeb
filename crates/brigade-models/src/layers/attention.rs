//! Attention with what some models do to its scores and probabilities.

use brigade_kernels::{
    DropoutMask, Mask, attention, attention_through, attention_with_dropout, draw_seed, is_fused_on_cpu,
};
use burn::nn::Dropout;
use burn::tensor::Tensor;

/// [`attention`], with a soft cap of its scores if there is one, and in training with dropout if there is any.
pub(crate) fn attend(
    [q, k, v]: [Tensor<4>; 3],
    mask: Mask,
    scale: f64,
    softcap: Option<f64>,
    dropout: &Dropout,
) -> Tensor<4> {
    let drops = dropout.prob > 0.0 && q.device().is_autodiff();
    match (softcap, drops) {
        (None, false) => attention(q, k, v, mask, scale),
        (None, true) if is_fused_on_cpu(&q) => {
            let dropout = DropoutMask { probability: dropout.prob as f32, seed: draw_seed(&q.device()) };
            attention_with_dropout(q, k, v, mask, scale, dropout)
        }
        _ => attention_through(q, k, v, &mask, scale, softcap, |probabilities| match drops {
            true => dropout.forward(probabilities),
            false => probabilities,
        }),
    }
}
