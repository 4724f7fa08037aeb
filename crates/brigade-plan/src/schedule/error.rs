//! What can be wrong with a schedule.

use thiserror::Error;

use super::PipelineScheduleKind;

/// Why there is no such schedule.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ScheduleError {
    /// A name that stands for no schedule.
    #[error(
        "pipeline.schedule (--schedule) is \"{given}\", which is not a known schedule; allowed are gpipe, \
        1f1b, interleaved-1f1b, zb-h1, zb-h2 and zbv"
    )]
    Unknown {
        /// The name.
        given: String,
    },

    /// A number that must be at least 1.
    #[error("{option} is 0; at least 1 is needed")]
    Zero {
        /// The option's full name.
        option: &'static str,
    },

    /// Several chunks with a schedule that runs one.
    #[error(
        "pipeline.chunks (--chunks) is {chunks}, but pipeline.schedule (--schedule) {kind} runs one chunk a rank: \
         set --chunks 1, or --schedule interleaved-1f1b"
    )]
    Chunks {
        /// The schedule.
        kind: PipelineScheduleKind,
        /// The chunks that were asked for.
        chunks: usize,
    },

    /// One chunk with the schedule that interleaves chunks.
    #[error(
        "pipeline.schedule (--schedule) interleaved-1f1b needs pipeline.chunks (--chunks) of at least 2, and it \
         is 1: set --chunks 2, or --schedule 1f1b, which is the same over one chunk"
    )]
    OneChunk,

    /// Another number of chunks with the schedule that is a V of two.
    #[error(
        "pipeline.schedule (--schedule) zbv has two chunks a rank, and pipeline.chunks (--chunks) is {chunks}: set --chunks 2, or \
         --schedule zb-h1 --chunks 1"
    )]
    TwoChunks {
        /// The chunks that were asked for.
        chunks: usize,
    },

    /// Micro-batches that do not fill interleaving's groups.
    #[error(
        "pipeline.schedule (--schedule) interleaved-1f1b takes micro-batches in groups of mesh.pp (--pp) = {stages}, \
         and there are {micro_batches} (train.global_batch_size / (mesh.dp x train.micro_batch_size)): make it \
         {}, or set --schedule 1f1b --chunks 1",
        nearest(*.micro_batches, *.stages)
    )]
    Groups {
        /// Micro-batches of a step.
        micro_batches: usize,
        /// Pipeline ranks.
        stages: usize,
    },

    /// More actions than anyone can want.
    #[error(
        "mesh.pp (--pp) {stages} x pipeline.chunks (--chunks) {chunks} x {micro_batches} micro-batches \
         (train.global_batch_size / (mesh.dp x train.micro_batch_size)) is too large a schedule: at most {most} stages, \
         {most} chunks and {tasks} tasks in all are possible",
        most = ScheduleError::MAX_STAGES,
        tasks = ScheduleError::MAX_TASKS
    )]
    TooLarge {
        /// Pipeline ranks.
        stages: usize,
        /// Chunks of a rank.
        chunks: usize,
        /// Micro-batches of a step.
        micro_batches: usize,
    },

    /// A cost of a backward that nobody has.
    #[error(
        "the backward's time (--backward-ratio) is {given} forwards; it must be from 0.001 to 1000, as in 2"
    )]
    BackwardRatio {
        /// The ratio.
        given: f64,
    },

    /// A list of actions that does not run a step, see [`Pipeline::check`](crate::Pipeline::check).
    #[error("the schedule of pipeline rank {rank} is wrong: {fault}")]
    Fault {
        /// The pipeline rank.
        rank: usize,
        /// What is wrong.
        fault: String,
    },
}

impl ScheduleError {
    /// Pipeline ranks, and chunks on one of them, at most.
    pub const MAX_STAGES: usize = 1024;
    /// Forwards of all ranks in a step, at most.
    pub const MAX_TASKS: usize = 1 << 22;
}

/// The multiples of `stages` around `micro_batches`.
fn nearest(micro_batches: usize, stages: usize) -> String {
    match micro_batches - micro_batches % stages.max(1) {
        0 => stages.to_string(),
        below => format!("{below} or {}", below.saturating_add(stages)),
    }
}
