//! The values of a step: each follows from what it is, so that one in the wrong place shows.

use brigade_plan::Task;

use super::compute_stream::Numbers;
use super::step::Step;

impl Step<'_> {
    /// The input of block `block`.
    pub fn activation(&self, block: usize, part: usize, task: Task) -> Numbers {
        self.numbers(&[0, self.sim.replica as u64, block as u64, part as u64, task.micro_batch as u64])
    }

    /// The gradient of the input of block `block`.
    pub fn upstream(&self, block: usize, task: Task) -> Numbers {
        self.numbers(&[1, self.sim.replica as u64, block as u64, task.micro_batch as u64])
    }

    pub fn gradient(&self, block: usize, task: Task, replica: usize) -> Numbers {
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

/// A number that differs where any of the given ones does.
pub fn hash(numbers: &[u64]) -> u64 {
    numbers.iter().fold(0x9e37_79b9_7f4a_7c15, |state: u64, number| {
        let mut next = (state ^ number).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        next ^= next >> 29;
        next = next.wrapping_mul(0x94d0_49bb_1331_11eb);
        next ^ (next >> 32)
    })
}
