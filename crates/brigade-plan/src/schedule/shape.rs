//! Where a pipeline's chunks lie, and who works after whom.

use super::{Pass, Task};

/// The three numbers that every schedule is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub stages: usize,
    pub chunks: usize,
    pub micro_batches: usize,
}

impl Shape {
    pub fn virtual_stage(self, rank: usize, chunk: usize) -> usize {
        chunk * self.stages + rank
    }

    /// Who takes what a pass of `task` on `rank` yields, and as which task of its own; `None` at the
    /// ends of the model. Neighbours may lie on the same rank, where there is but one stage.
    pub fn after(self, pass: Pass, rank: usize, task: Task) -> Option<(usize, Task)> {
        let stage = self.virtual_stage(rank, task.chunk);
        let next = match pass {
            Pass::Forward => Some(stage + 1).filter(|&next| next < self.stages * self.chunks),
            Pass::Backward => stage.checked_sub(1),
        }?;
        Some((next % self.stages, Task { chunk: next / self.stages, ..task }))
    }

    /// Whose yield a pass of `task` on `rank` starts from; `None` at the ends of the model.
    pub fn before(self, pass: Pass, rank: usize, task: Task) -> Option<(usize, Task)> {
        match pass {
            Pass::Forward => self.after(Pass::Backward, rank, task),
            Pass::Backward => self.after(Pass::Forward, rank, task),
        }
    }

    /// [`Self::after`], where that is another rank.
    pub fn receiver(self, pass: Pass, rank: usize, task: Task) -> Option<(usize, Task)> {
        self.after(pass, rank, task).filter(|&(to, _)| to != rank)
    }

    /// [`Self::before`], where that is another rank.
    pub fn sender(self, pass: Pass, rank: usize, task: Task) -> Option<(usize, Task)> {
        self.before(pass, rank, task).filter(|&(from, _)| from != rank)
    }
}
