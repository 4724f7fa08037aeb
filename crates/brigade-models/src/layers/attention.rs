//! Attention with what some models do to its scores and probabilities.

use brigade_kernels::{
    DropoutMask, Mask, attention, attention_packed, attention_packed_with_dropout, attention_through,
    attention_with_dropout, draw_seed, is_fused_on_cpu,
};
use burn::nn::Dropout;
use burn::tensor::Tensor;

use super::dropout::drops;

/// [`attend`] where one product gave queries, keys and values of as many heads each: `[batch, positions, 3 · width]` becomes `[batch, positions, width]`.
pub(crate) fn attend_packed(
    qkv: Tensor<3>,
    heads: usize,
    mask: Mask,
    scale: f64,
    dropout: &Dropout,
) -> Tensor<3> {
    match drops(&qkv, dropout) {
        false => attention_packed(qkv, heads, heads, mask, scale),
        true if is_fused_on_cpu(&qkv) => {
            let dropout = DropoutMask { probability: dropout.prob as f32, seed: draw_seed(&qkv.device()) };
            attention_packed_with_dropout(qkv, heads, heads, mask, scale, dropout)
        }
        true => {
            let [batch, positions, width] = qkv.dims();
            let depth = width / (3 * heads);
            let vectors = qkv.reshape([batch, positions, 3 * heads, depth]).swap_dims(1, 2);
            let vectors = [0, 1, 2].map(|index| vectors.clone().narrow(1, index * heads, heads));
            attend(vectors, mask, scale, None, dropout).swap_dims(1, 2).reshape([batch, positions, width / 3])
        }
    }
}

/// [`attention`], with a soft cap of its scores if there is one, and in training with dropout if there is any.
pub(crate) fn attend(
    [q, k, v]: [Tensor<4>; 3],
    mask: Mask,
    scale: f64,
    softcap: Option<f64>,
    dropout: &Dropout,
) -> Tensor<4> {
    let drops = drops(&q, dropout);
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
