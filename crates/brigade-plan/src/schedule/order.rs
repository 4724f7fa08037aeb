//! The order of a rank's forwards and backwards.
//!
//! All schedules here have one form: a rank runs some forwards to warm up, then forwards and backwards in turn, then the remaining
//! backwards. They differ in the length of the warm-up. Forwards come in an order that is the same on all ranks, and so do
//! backwards.

use super::shape::Shape;
use super::{Action, PipelineScheduleKind, Task};

/// The forwards of a rank: micro-batches in groups of `stages`, each group through one chunk after the
/// other. With one chunk that is the order of the micro-batches.
pub(super) fn forwards(shape: Shape) -> Vec<Task> {
    let Shape { stages, chunks, micro_batches } = shape;
    (0..micro_batches)
        .step_by(stages.max(1))
        .flat_map(|first| (0..chunks).map(move |chunk| (first, chunk)))
        .flat_map(|(first, chunk)| {
            let group = first..(first + stages).min(micro_batches);
            group.map(move |micro_batch| Task { chunk, micro_batch })
        })
        .collect()
}

/// What `rank` computes, in order.
pub(super) fn computes(kind: PipelineScheduleKind, shape: Shape, rank: usize) -> Vec<Action> {
    let forwards = forwards(shape);
    let last_chunk = shape.chunks - 1;
    let backwards = forwards.iter().map(|task| Task { chunk: last_chunk - task.chunk, ..*task });
    let warm_up = warm_up(kind, shape, rank).min(forwards.len());

    let mut forward = forwards.iter().copied().map(Action::Forward);
    let mut backward = backwards.map(Action::Backward);
    let mut order: Vec<Action> = forward.by_ref().take(warm_up).collect();
    for action in forward {
        order.push(action);
        order.extend(backward.next());
    }
    order.extend(backward);
    order
}

/// Forwards before the first pair of a forward and a backward.
fn warm_up(kind: PipelineScheduleKind, shape: Shape, rank: usize) -> usize {
    let ranks_after = shape.stages - rank - 1;
    match kind {
        PipelineScheduleKind::GPipe => shape.micro_batches,
        PipelineScheduleKind::OneFOneB => ranks_after,
        // Narayanan et al. 2021, section 2.2, as Megatron-LM counts it: twice the distance to the last rank, and
        // all chunks but the last of the first group.
        PipelineScheduleKind::Interleaved => 2 * ranks_after + (shape.chunks - 1) * shape.stages,
    }
}
