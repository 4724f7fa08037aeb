//! The order of a rank's forwards and backwards.
//!
//! Schedules that loop over the ranks have one form: a rank runs some forwards to warm up, then forwards and backwards in turn, then
//! the remaining backwards. They differ in the length of the warm-up. Forwards come in an order that is the same on all ranks, and so
//! do backwards. A V has an order of its own, [`v_passes`].
//!
//! Zero-bubble schedules are such an order, whose backwards are the first halves; [`weights`](super::weights) puts the second ones
//! where a rank would wait.

use crate::schedule::shape::Shape;
use crate::schedule::{Action, PipelineScheduleKind, Placement, StageTask};

/// The forwards of a rank that evaluates.
pub(super) fn evaluation(shape: Shape, rank: usize) -> Vec<Action> {
    if (shape.placement, shape.chunks) != (Placement::V, 2) {
        return forwards(shape).into_iter().map(Action::Forward).collect();
    }
    // Until the first micro-batch comes up, those that go down; then one of each in turn.
    let task = |chunk: usize| move |micro_batch: usize| Action::Forward(StageTask { chunk, micro_batch });
    let lead = (2 * (shape.stages - rank) - 1).min(shape.micro_batches);
    let down = (lead..shape.micro_batches).map(task(0)).map(Some).chain(std::iter::repeat(None));
    let turns = (0..shape.micro_batches).map(task(1)).zip(down).flat_map(|(up, down)| [Some(up), down]);
    (0..lead).map(task(0)).chain(turns.flatten()).collect()
}

/// The forwards of a rank: micro-batches in groups of `stages`, each group through one chunk after the
/// other. With one chunk that is the order of the micro-batches.
fn forwards(shape: Shape) -> Vec<StageTask> {
    let Shape { stages, chunks, micro_batches, .. } = shape;
    (0..micro_batches)
        .step_by(stages.max(1))
        .flat_map(|first| (0..chunks).map(move |chunk| (first, chunk)))
        .flat_map(|(first, chunk)| {
            let group = first..(first + stages).min(micro_batches);
            group.map(move |micro_batch| StageTask { chunk, micro_batch })
        })
        .collect()
}

/// The forwards of `rank`, and its backwards, or first halves of them, as `backward` makes them.
pub(super) fn training(
    kind: PipelineScheduleKind,
    shape: Shape,
    rank: usize,
    backward: fn(StageTask) -> Action,
) -> Vec<Action> {
    let ranks_after = shape.stages - rank - 1;
    // Forwards before the first pair of a forward and a backward.
    let warm_up = match kind {
        PipelineScheduleKind::GPipe => shape.micro_batches,
        PipelineScheduleKind::OneFOneB | PipelineScheduleKind::ZbH1 => ranks_after,
        // As many as fit before the gradient of the first comes back.
        PipelineScheduleKind::ZbH2 => 2 * ranks_after,
        // Narayanan et al. 2021, section 2.2, as Megatron-LM counts it: twice the distance to the last rank, and
        // all chunks but the last of the first group.
        PipelineScheduleKind::Interleaved => 2 * ranks_after + (shape.chunks - 1) * shape.stages,
        PipelineScheduleKind::Zbv => return v_passes(shape, rank, backward),
    };
    let forwards = forwards(shape);
    let last_chunk = shape.chunks - 1;
    let backwards = forwards.iter().map(|task| StageTask { chunk: last_chunk - task.chunk, ..*task });

    let mut forward = forwards.iter().copied().map(Action::Forward);
    let mut backward = backwards.map(backward);
    let mut order: Vec<Action> = forward.by_ref().take(warm_up).collect();
    for action in forward {
        order.push(action);
        order.extend(backward.next());
    }
    order.extend(backward);
    order
}

/// A V of two chunks. A rank is passed by the first micro-batch twice, going down and coming up again. Until it comes up the rank runs
/// forwards of the first chunk, then forwards of both in turn until its gradient comes. Then as many micro-batches turn
/// back as there are ranks below, and from then on each chunk runs forward and backward in turn.
fn v_passes(shape: Shape, rank: usize, backward: fn(StageTask) -> Action) -> Vec<Action> {
    let Shape { stages, micro_batches, .. } = shape;
    let mut order = Vec::with_capacity(4 * micro_batches);
    let mut done = [[0; 2]; 2];
    let mut push = |pass: fn(StageTask) -> Action, is_backward: bool, chunk: usize| {
        let micro_batch = &mut done[usize::from(is_backward)][chunk];
        if *micro_batch < micro_batches {
            order.push(pass(StageTask { chunk, micro_batch: *micro_batch }));
            *micro_batch += 1;
        }
    };
    let to_turn = stages - rank;
    for _ in 0..2 * to_turn - 1 {
        push(Action::Forward, false, 0);
    }
    for _ in 0..rank {
        push(Action::Forward, false, 1);
        push(Action::Forward, false, 0);
    }
    for _ in 0..to_turn {
        push(Action::Forward, false, 1);
        push(backward, true, 1);
    }
    for _ in 0..micro_batches {
        for chunk in 0..2 {
            push(Action::Forward, false, chunk);
            push(backward, true, chunk);
        }
    }
    order
}
