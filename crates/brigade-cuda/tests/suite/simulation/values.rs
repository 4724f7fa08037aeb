//! The values of a step. Each is derived from what it stands for, so that one in the wrong place shows.

use std::hash::{DefaultHasher, Hash, Hasher};

use brigade_plan::StageTask;

use super::compute_stream::Numbers;
use super::step::Step;

impl Step<'_> {
    /// The input of block `block`.
    pub fn activation(&self, block: usize, part: usize, task: StageTask) -> Numbers {
        self.numbers(&[0, self.sim.replica as u64, block as u64, part as u64, task.micro_batch as u64])
    }

    /// The gradient of the input of block `block`.
    pub fn upstream(&self, block: usize, task: StageTask) -> Numbers {
        self.numbers(&[1, self.sim.replica as u64, block as u64, task.micro_batch as u64])
    }

    pub fn gradient(&self, block: usize, task: StageTask, replica: usize) -> Numbers {
        self.numbers(&[2, replica as u64, block as u64, task.micro_batch as u64])
    }

    pub fn over_replicas(&self, numbers: impl Fn(usize) -> Numbers) -> Numbers {
        (0..self.replicas).map(numbers).fold(Numbers { first: 0, step: 0 }, Numbers::plus)
    }

    pub fn numbers(&self, of: &[u64]) -> Numbers {
        let hash = hash(of) ^ hash(&[self.plan.step, 7]);
        Numbers { first: (hash >> 24) as i64, step: (hash & 0xff) as i64 + 1 }
    }
}

/// A number that is different whenever one of these is.
pub fn hash(numbers: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    numbers.hash(&mut hasher);
    hasher.finish()
}
