//! When communication hides completely behind computation: ratios of their times, complete where at most 1 (Nanotron team 2025, "The Ultra-Scale Playbook",
//! appendix on overlap). Bandwidths are in bytes a second, FLOP/s those of the peak.

/// Data parallelism: the all-reduce of `parameters` gradients of 16 bits against the backward over `tokens` of a rank:
/// `P / (2 tokens) · (N-1)/N · flops / bandwidth`, with `P` as a share of what multiplies each token.
pub fn data_parallel(tokens: f64, ranks: usize, flops: f64, bandwidth: f64) -> f64 {
    (ranks as f64 - 1.0) / ranks as f64 * flops / (2.0 * tokens * bandwidth)
}

/// ZeRO-3: the all-gather of a block's parameters against its forward: `1 / (2 s b) · (N-1)/N · flops / bandwidth`.
pub fn zero3(sequence_length: f64, micro_batch: f64, ranks: usize, flops: f64, bandwidth: f64) -> f64 {
    (ranks as f64 - 1.0) / ranks as f64 * flops / (2.0 * sequence_length * micro_batch * bandwidth)
}

/// A pipeline: an activation's message against the forward of the next stage: `flops / (32 h layers bandwidth)`.
pub fn pipeline(hidden: f64, layers_of_next_stage: f64, flops: f64, bandwidth: f64) -> f64 {
    flops / (32.0 * hidden * layers_of_next_stage * bandwidth)
}
