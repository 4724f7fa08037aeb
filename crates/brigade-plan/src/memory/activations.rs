//! Bytes that a layer and the loss keep for their backward.

use crate::cluster::Dtype;
use crate::model::ModelShape;

/// What the bytes of activations depend on besides the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivationSettings {
    /// Tokens of a sequence.
    pub sequence_length: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// The type of the computation.
    pub dtype: Dtype,
    /// Tensor-parallel ranks, which share what is between their operations, too (sequence parallelism).
    pub tp: usize,
    /// Whether attention is fused, so that its scores are not kept.
    pub fused_attention: bool,
    /// Whether what tensor-parallel ranks gather for their products is kept whole.
    pub keeps_gathered: bool,
}

impl ActivationSettings {
    /// Tokens of a micro-batch.
    pub fn tokens(&self) -> u64 {
        self.sequence_length as u64 * self.micro_batch as u64
    }

    /// Bytes of the tensor between two layers.
    pub fn boundary(&self, model: &ModelShape) -> u64 {
        self.tokens() * model.hidden as u64 * self.dtype.bytes() / self.tp as u64
    }
}

/// Bytes that a layer keeps of a micro-batch, without recomputation: the inputs of its norms and of its products, queries, keys and values,
/// what an MLP needs of its activation, and of attention the sums of its softmax, or all scores where it is not fused (Korthikanti et al.
/// 2022, "Reducing activation recomputation in large transformer models", equation 1, here without dropout and for gated MLPs too).
pub fn layer_activations(model: &ModelShape, settings: &ActivationSettings) -> u64 {
    let [h, f, q, k] =
        [model.hidden, model.intermediate, model.query_size(), model.key_size()].map(|size| size as u64);
    let (tokens, bytes, tp) = (settings.tokens(), settings.dtype.bytes(), settings.tp as u64);
    let mlp = if model.gated { 4 * f } else { 2 * f };
    let values = 4 * h + 2 * q + 2 * k + mlp;
    let heads = model.heads as u64;
    let attention = match settings.fused_attention {
        true => 4 * heads,
        false => 2 * bytes * heads * settings.sequence_length as u64,
    };
    // Those of the inputs of the two groups of products that are other ranks' shards.
    let gathered = if settings.keeps_gathered { 2 * h * bytes * (tp - 1) / tp } else { 0 };
    tokens * ((bytes * values + attention) / tp + gathered)
}

/// Bytes that a layer needs besides while its backward runs: gradients of its MLP's values, of queries, keys and values, and of its input.
pub fn layer_working(model: &ModelShape, settings: &ActivationSettings) -> u64 {
    let [h, f] = [model.hidden, model.intermediate].map(|size| size as u64);
    let values = 3 * h + if model.gated { 3 * f } else { 2 * f };
    settings.tokens() * settings.dtype.bytes() * values / settings.tp as u64
}

/// Bytes of the head and the loss at their peak: logits in the type of the computation, the same in fp32, and their gradients.
pub fn loss_activations(model: &ModelShape, settings: &ActivationSettings) -> u64 {
    let bytes = settings.dtype.bytes();
    let of_logit = if bytes == 4 { 8 } else { bytes + 8 };
    let logits = model.logits(settings.micro_batch, settings.sequence_length) * of_logit;
    let values = 3 * settings.tokens() * model.hidden as u64 * bytes;
    (logits + values) / settings.tp as u64
}
