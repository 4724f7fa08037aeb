//! What is known in closed form about schedules whose transfers take no time.

use super::PipelineScheduleKind;

/// The share of a step in which a rank computes nothing: `(p - 1) / (v m + p - 1)` with `p` stages of `v`
/// chunks and `m` micro-batches. It does not depend on how much longer a backward takes than a forward.
///
/// GPipe and 1F1B (`v` = 1): Huang et al. 2019, section 2.3; interleaved 1F1B: Narayanan et al. 2021,
/// "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2. The latter states idle
/// over useful time, `(p - 1) / (v m)`; this is idle over all time. 0 where there is nothing to compute.
pub fn bubble_fraction(stages: usize, chunks: usize, micro_batches: usize) -> f64 {
    let idle = stages.saturating_sub(1) as f64;
    let busy = chunks as f64 * micro_batches as f64;
    if busy > 0.0 { idle / (busy + idle) } else { 0.0 }
}

/// The micro-batches, each through one chunk, whose activations `rank` keeps for their backward at once,
/// at most: GPipe `m`, 1F1B `min(m, p - rank)`, interleaved 1F1B `min(v m, 2 (p - rank - 1) + (v - 1) p +
/// 1)`.
///
/// Narayanan et al. 2021, sections 2.2.1 and 2.2.2; the last is the warm-up of Megatron-LM's
/// implementation and the forward after it. 0 where there is no such rank.
pub fn peak_in_flight(
    kind: PipelineScheduleKind,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
    rank: usize,
) -> usize {
    let Some(ranks_after) = stages.checked_sub(rank + 1) else { return 0 };
    match kind {
        PipelineScheduleKind::GPipe => micro_batches,
        PipelineScheduleKind::OneFOneB => micro_batches.min(ranks_after + 1),
        PipelineScheduleKind::Interleaved => {
            (chunks * micro_batches).min(2 * ranks_after + chunks.saturating_sub(1) * stages + 1)
        }
    }
}
