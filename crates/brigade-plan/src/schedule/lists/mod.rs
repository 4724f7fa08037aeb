//! How the lists of a pipeline are made: each rank's forwards and backwards, the second halves between them, and what ranks send each
//! other.

mod passes;
mod transfers;
mod weights;

use super::shape::Shape;
use super::{Action, PipelineScheduleKind, StageTask, formula};

pub(super) use transfers::MAX_POSTED;

/// What each rank does in a training step.
pub(super) fn training(kind: PipelineScheduleKind, shape: Shape) -> Vec<Vec<Action>> {
    let passes = |backward: fn(StageTask) -> Action| -> Vec<_> {
        (0..shape.stages).map(|rank| passes::training(kind, shape, rank, backward)).collect()
    };
    let computes = if kind.splits_backward() {
        let Shape { stages, chunks, micro_batches, .. } = shape;
        let kept = formula::peak_in_flight(kind, stages, chunks, micro_batches, 0);
        weights::with_weights(shape, &passes(Action::BackwardInput), kept)
    } else {
        passes(Action::Backward)
    };
    transfers::complete(shape, &computes)
}

/// What each rank does in an evaluation.
pub(super) fn evaluation(shape: Shape) -> Vec<Vec<Action>> {
    let forwards: Vec<_> = (0..shape.stages).map(|rank| passes::evaluation(shape, rank)).collect();
    transfers::complete(shape, &forwards)
}
