//! Where a pipeline's chunks lie, and who works after whom.

use super::{Pass, StageTask};

/// How the virtual stages of a pipeline, its parts counted from the input, are placed on its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Placement {
    /// Every chunk begins at rank 0 again, so that the last virtual stage is on the last rank.
    #[default]
    Loop,
    /// Every second chunk goes through the ranks backwards: the last virtual stage of two chunks is on rank 0, and the pass through the
    /// model turns round on the last rank without a message (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory").
    V,
}

impl Placement {
    /// The virtual stage that a rank's chunk is, in a pipeline of `stages` ranks.
    pub fn virtual_stage(self, stages: usize, rank: usize, chunk: usize) -> usize {
        chunk * stages + self.along(stages, rank, chunk)
    }

    /// The rank that has a virtual stage, and as which of its chunks.
    pub fn owner(self, stages: usize, virtual_stage: usize) -> (usize, usize) {
        let (chunk, along) = (virtual_stage / stages, virtual_stage % stages);
        (self.along(stages, along, chunk), chunk)
    }

    /// Where a rank comes in the pass through a chunk, or which rank comes there.
    fn along(self, stages: usize, rank: usize, chunk: usize) -> usize {
        match self {
            Self::V if chunk % 2 == 1 => stages - 1 - rank,
            _ => rank,
        }
    }
}

/// The numbers that every schedule is made from, and where its chunks lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub placement: Placement,
    pub stages: usize,
    pub chunks: usize,
    pub micro_batches: usize,
}

impl Shape {
    pub fn virtual_stage(self, rank: usize, chunk: usize) -> usize {
        self.placement.virtual_stage(self.stages, rank, chunk)
    }

    /// The rank that takes the result of a pass of `task` on `rank`, and its task for it; `None` at the ends
    /// of the model. Neighbours may be on the same rank.
    pub fn after(self, pass: Pass, rank: usize, task: StageTask) -> Option<(usize, StageTask)> {
        let stage = self.virtual_stage(rank, task.chunk);
        let next = match pass {
            Pass::Forward => Some(stage + 1).filter(|&next| next < self.stages * self.chunks),
            Pass::Backward => stage.checked_sub(1),
        }?;
        let (rank, chunk) = self.placement.owner(self.stages, next);
        Some((rank, StageTask { chunk, ..task }))
    }

    /// The task whose result a pass of `task` on `rank` starts from; `None` at the ends of the model.
    pub fn before(self, pass: Pass, rank: usize, task: StageTask) -> Option<(usize, StageTask)> {
        match pass {
            Pass::Forward => self.after(Pass::Backward, rank, task),
            Pass::Backward => self.after(Pass::Forward, rank, task),
        }
    }

    /// [`Self::after`], where that is another rank.
    pub fn receiver(self, pass: Pass, rank: usize, task: StageTask) -> Option<(usize, StageTask)> {
        self.after(pass, rank, task).filter(|&(to, _)| to != rank)
    }

    /// [`Self::before`], where that is another rank.
    pub fn sender(self, pass: Pass, rank: usize, task: StageTask) -> Option<(usize, StageTask)> {
        self.before(pass, rank, task).filter(|&(from, _)| from != rank)
    }

    /// A task's place in a rank's list of all tasks.
    pub fn index(self, task: StageTask) -> usize {
        task.chunk * self.micro_batches + task.micro_batch
    }
}
