//! What is known in closed form about schedules whose transfers take no time.

use super::PipelineScheduleKind;

/// The share of a step in which a rank computes nothing, with `p` stages of `v` chunks and `m` micro-batches. 0 where there is nothing
/// to compute.
///
/// - GPipe, 1F1B (`v` = 1) and interleaved 1F1B: `(p - 1) / (v m + p - 1)`, however much longer a backward takes than a forward. Huang et
///   al. 2019, section 2.3; Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2,
///   which states idle over useful time, `(p - 1) / (v m)`; this is idle over all time.
/// - Zero-bubble schedules, where a half of a backward takes as long as a forward: `(p - 1) / (3 v m + p - 1)` from `p` micro-batches
///   on. What is left is that the last rank begins `p - 1` forwards after the first one, while a step ends on all ranks at
///   once. With fewer micro-batches the way of one through all ranks and back is longer than that, see the source.
pub fn bubble_fraction(
    kind: PipelineScheduleKind,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
) -> f64 {
    let [p, v, m] = [stages, chunks, micro_batches].map(|number| number as f64);
    let busy = v * m;
    if busy == 0.0 || stages == 0 {
        return 0.0;
    }
    // In forwards of one chunk, in which a half of a backward takes as long.
    let length = match kind {
        PipelineScheduleKind::GPipe | PipelineScheduleKind::OneFOneB | PipelineScheduleKind::Interleaved => {
            return (p - 1.0) / (busy + p - 1.0);
        }
        PipelineScheduleKind::ZbH1 | PipelineScheduleKind::ZbH2 => {
            (3.0 * m + p - 1.0).max(2.0 * m + 2.0 * p - 1.0)
        }
        PipelineScheduleKind::Zbv => {
            (6.0 * m + p - 1.0).max(4.0 * m + 3.0 * p - 1.0).max(2.0 * m + 4.0 * p - 1.0)
        }
    };
    1.0 - 3.0 * busy / length
}

/// The micro-batches, each through one chunk, whose activations `rank` keeps for their backward at once,
/// at most, in a zero-bubble schedule until its second half: GPipe `m`, 1F1B `min(m, p - rank)`, interleaved 1F1B
/// `min(v m, 2 (p - rank - 1) + (v - 1) p + 1)`, ZB-H1 `min(m, p)`, ZB-H2 `min(m, 2 p - 1)`, ZB-V `min(2 m, 2 p)`.
///
/// Narayanan et al. 2021, sections 2.2.1 and 2.2.2; that of interleaving is the warm-up of Megatron-LM's
/// implementation and the forward after it. Qi et al. 2023, "Zero Bubble Pipeline Parallelism", sections 2 and 6. 0 where there is no
/// such rank.
pub fn peak_in_flight(
    kind: PipelineScheduleKind,
    stages: usize,
    chunks: usize,
    micro_batches: usize,
    rank: usize,
) -> usize {
    let Some(ranks_after) = stages.checked_sub(rank + 1) else { return 0 };
    let most = match kind {
        PipelineScheduleKind::GPipe => micro_batches,
        PipelineScheduleKind::OneFOneB => ranks_after + 1,
        PipelineScheduleKind::Interleaved => 2 * ranks_after + chunks.saturating_sub(1) * stages + 1,
        PipelineScheduleKind::ZbH1 => stages,
        PipelineScheduleKind::ZbH2 => 2 * stages - 1,
        PipelineScheduleKind::Zbv => 2 * stages,
    };
    most.min(chunks * micro_batches)
}
