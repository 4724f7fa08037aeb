//! Attention with what some models do to its scores and probabilities.

use brigade_kernels::{
    AttentionDropout, Mask, attention, attention_through, attention_with_dropout, is_fused_on_cpu,
};
use burn::nn::Dropout;
use burn::tensor::{Device, Distribution, Tensor};

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
            let seed = draw_seed(&q.device().inner());
            let dropout = AttentionDropout { probability: dropout.prob as f32, seed };
            attention_with_dropout(q, k, v, mask, scale, dropout)
        }
        _ => attention_through(q, k, v, &mask, scale, softcap, |probabilities| match drops {
            true => dropout.forward(probabilities),
            false => probabilities,
        }),
    }
}

/// A seed from Burn's generator, which is a function of the place in training.
fn draw_seed(device: &Device) -> u64 {
    let digits = Tensor::<1>::random([4], Distribution::Uniform(0.0, 65536.0), device);
    digits.into_data().iter::<f32>().fold(0, |seed, digit| seed << 16 | digit as u64)
}
