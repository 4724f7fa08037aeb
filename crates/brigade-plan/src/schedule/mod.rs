//! Schedules as data: what each rank of a pipeline does in a step, in order.
//!
//! - The model is cut into `stages * chunks` virtual stages of consecutive blocks. Which rank's chunk each of them is, the
//!   [`Placement`] says; activations go to the next virtual stage, gradients to the one before. Two virtual stages on the same rank
//!   hand over without a message.
//! - Every chunk runs every micro-batch forward once and backward once, at once or in two halves. Its
//!   backwards come in the order of the micro-batches, and so does each half, so that its gradients add up
//!   in that order.
//! - All messages from one rank to another, activations and gradients alike, are received in the order
//!   of their sending.
//! - No rank ever waits for one that waits for it, even if a send waited until its receive is posted.
//! - A rank has at most [`Pipeline::MAX_POSTED`] receives posted that it has not used.

mod action;
mod check;
mod error;
pub mod formula;
mod kind;
mod lists;
mod measure;
mod shape;
mod show;
mod simulate;

pub use action::{Action, Pass, StageTask};
pub use error::ScheduleError;
pub use kind::PipelineScheduleKind;
pub use shape::Placement;
pub use simulate::{SimulatedSpan, SimulatedTimeline};

use shape::Shape;

/// What all ranks of a pipeline do in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// Ranks of the pipeline.
    pub stages: usize,
    /// Chunks of each rank.
    pub chunks: usize,
    /// Micro-batches of the step.
    pub micro_batches: usize,
    placement: Placement,
    kind: Option<PipelineScheduleKind>,
    actions: Vec<Vec<Action>>,
}

impl Pipeline {
    /// Receives that are posted and not yet used by a computing action, on one rank at any time, at most.
    pub const MAX_POSTED: usize = lists::MAX_POSTED;

    /// A training step.
    ///
    /// One stage is allowed with every schedule. So are fewer micro-batches than stages, except with
    /// interleaving, which needs a multiple of `stages`, and at least two chunks. ZB-V has two chunks.
    ///
    /// # Errors
    /// If a number is 0 or does not fit the schedule; the text names the nearest that does.
    pub fn new(
        kind: PipelineScheduleKind,
        stages: usize,
        chunks: usize,
        micro_batches: usize,
    ) -> Result<Self, ScheduleError> {
        let options = [
            (stages, "mesh.pp (--pp)"),
            (chunks, "pipeline.chunks (--chunks)"),
            (
                micro_batches,
                "the number of micro-batches (train.global_batch_size / (mesh.dp x train.micro_batch_size))",
            ),
        ];
        if let Some((_, option)) = options.into_iter().find(|(number, _)| *number == 0) {
            return Err(ScheduleError::Zero { option });
        }
        match kind {
            PipelineScheduleKind::GPipe
            | PipelineScheduleKind::OneFOneB
            | PipelineScheduleKind::ZbH1
            | PipelineScheduleKind::ZbH2
                if chunks > 1 =>
            {
                return Err(ScheduleError::Chunks { kind, chunks });
            }
            PipelineScheduleKind::Zbv if chunks != 2 => return Err(ScheduleError::TwoChunks { chunks }),
            PipelineScheduleKind::Interleaved if chunks == 1 => return Err(ScheduleError::OneChunk),
            PipelineScheduleKind::Interleaved if !micro_batches.is_multiple_of(stages) => {
                return Err(ScheduleError::Groups { micro_batches, stages });
            }
            _ => {}
        }
        let tasks = stages.checked_mul(chunks).and_then(|product| product.checked_mul(micro_batches));
        let is_small = tasks.is_some_and(|tasks| tasks <= ScheduleError::MAX_TASKS);
        if !is_small || stages > ScheduleError::MAX_STAGES || chunks > ScheduleError::MAX_STAGES {
            return Err(ScheduleError::TooLarge { stages, chunks, micro_batches });
        }
        let shape = Shape { placement: kind.placement(), stages, chunks, micro_batches };
        Ok(Self::of(shape, Some(kind), lists::training(kind, shape)))
    }

    /// A pass through the model without a backward, for evaluation.
    ///
    /// Micro-batches follow one another without waiting for the end of the pipeline; with several chunks
    /// they go in groups of `stages`, the last of which may be smaller. Any number of micro-batches is
    /// allowed, 0 too.
    pub fn forward_only(placement: Placement, stages: usize, chunks: usize, micro_batches: usize) -> Self {
        let shape = Shape { placement, stages, chunks, micro_batches };
        Self::of(shape, None, lists::evaluation(shape))
    }

    /// A custom schedule: the placement of its chunks, and the list of each rank.
    ///
    /// # Errors
    /// [`ScheduleError::Fault`] if the lists do not pass [`Self::check`].
    pub fn from_actions(
        placement: Placement,
        stages: usize,
        chunks: usize,
        micro_batches: usize,
        actions: Vec<Vec<Action>>,
    ) -> Result<Self, ScheduleError> {
        let pipeline = Self::of(Shape { placement, stages, chunks, micro_batches }, None, actions);
        pipeline.check().map(|()| pipeline)
    }

    fn of(shape: Shape, kind: Option<PipelineScheduleKind>, actions: Vec<Vec<Action>>) -> Self {
        let Shape { placement, stages, chunks, micro_batches } = shape;
        Self { stages, chunks, micro_batches, placement, kind, actions }
    }

    fn shape(&self) -> Shape {
        let Self { placement, stages, chunks, micro_batches, .. } = *self;
        Shape { placement, stages, chunks, micro_batches }
    }

    /// The schedule's name; `None` for a pass without a backward and a custom schedule.
    pub fn kind(&self) -> Option<PipelineScheduleKind> {
        self.kind
    }

    /// Which rank has which part of the model.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// What the pipeline rank `rank` does, in order; nothing if there is no such rank.
    pub fn actions(&self, rank: usize) -> &[Action] {
        self.actions.get(rank).map_or(&[], Vec::as_slice)
    }

    /// Which part of the model, counted from the input, `chunk` of `rank` is.
    pub fn virtual_stage(&self, rank: usize, chunk: usize) -> usize {
        self.shape().virtual_stage(rank, chunk)
    }

    /// Parts that the model is split into.
    pub fn virtual_stages(&self) -> usize {
        self.stages * self.chunks
    }
}
