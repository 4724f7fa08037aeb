//! Estimates of activations by Megatron-LM and others, in their own accounting.

/// The sizes that Megatron-LM's estimate of activations needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MegatronShape {
    /// Tokens of a sequence.
    pub sequence_length: f64,
    /// Sequences of a micro-batch.
    pub micro_batch: f64,
    /// The width.
    pub hidden: f64,
    /// The width of an MLP.
    pub ffn_hidden: f64,
    /// Layers of the model.
    pub layers: f64,
    /// The vocabulary, padded.
    pub vocabulary: f64,
    /// Tensor-parallel ranks.
    pub tp: f64,
    /// Stages.
    pub stages: f64,
    /// Chunks of a stage, if it has several.
    pub chunks: Option<f64>,
    /// Micro-batches of a step, if there are fewer than fill the pipeline.
    pub micro_batches: Option<f64>,
}

/// Bytes of activations on stage 0 with sequence parallelism and selective recomputation, by Megatron-LM's `theoretical_memory_usage` (after Korthikanti et al. 2022,
/// table 2).
pub fn megatron_activations(shape: &MegatronShape) -> f64 {
    let MegatronShape {
        sequence_length,
        micro_batch,
        hidden,
        ffn_hidden,
        layers,
        vocabulary,
        tp,
        stages,
        ..
    } = *shape;
    let tokens = sequence_length * micro_batch;
    let mut bytes = tokens * hidden * (18.0 + 4.0 * ffn_hidden / hidden) * layers;
    bytes += 8.0 * tokens * stages + tokens * hidden * stages;
    bytes *= match (shape.chunks, shape.micro_batches) {
        (Some(chunks), _) => 1.0 + (stages - 1.0) / (stages * chunks),
        (None, Some(micro_batches)) if stages > 1.0 => (micro_batches / stages).min(1.0),
        _ => 1.0,
    };
    if stages == 1.0 {
        bytes += tokens * hidden * 4.0 * (1.0 + vocabulary / hidden);
    }
    bytes / tp
}

/// Bytes of activations of all layers in 16 bits without recomputation and with scores kept: `L s b h (34 + 5 a s / h)` (Korthikanti et al. 2022, equation 1).
pub fn unfused_activations(
    layers: f64,
    sequence_length: f64,
    micro_batch: f64,
    hidden: f64,
    heads: f64,
) -> f64 {
    layers * sequence_length * micro_batch * hidden * (34.0 + 5.0 * heads * sequence_length / hidden)
}
