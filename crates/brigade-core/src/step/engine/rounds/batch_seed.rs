//! Random numbers of the data.

use crate::dist::DATA;
use crate::step::engine::UntypedEngine;
use crate::step::forward_backward::tape::Place;

/// What stands for the name of a block where a micro-batch is made.
const BATCH: &str = "(batch)";

impl UntypedEngine {
    /// The seed of what the `k`-th of this rank's `count` micro-batches of the next step draws while it is made, for
    /// [`with_seed`](crate::with_seed): a function of the seed of the run, the step and the micro-batch's number in the global batch, so
    /// augmented data are the same on any mesh, and on all stages of a pipeline.
    pub fn batch_seed(&self, k: usize, count: usize) -> u64 {
        let all = self.store.groups.all();
        let (mesh, rank) = (all.mesh(), all.world().rank());
        let (own, per_update) = (self.window.count + k, self.settings.strategy.period() * count);
        let before = self.settings.worker.unwrap_or(0) * self.store.groups.data.size() * per_update;
        let micro_batch = before + self.store.zero.micro_batch_number(mesh, rank, own, per_update);
        let step = self.step_of_update(self.step + 1);
        seed_of_batch(self.seed, step, micro_batch)
    }

    /// The same of this rank's `k`-th micro-batch of an evaluation.
    pub fn evaluation_seed(&self, k: usize) -> u64 {
        let data = self.store.groups.all().over(&DATA);
        let micro_batch = k * data.size() + data.rank();
        Place { seed: self.seed, step: self.step, micro_batch, training: false }.context(BATCH).random_seed()
    }

    /// The step with whose update step `step` ends.
    pub(crate) fn step_of_update(&self, step: u64) -> u64 {
        let strategy = &self.settings.strategy;
        (step..step + strategy.period() as u64).find(|step| strategy.synchronizes(*step)).unwrap_or(step)
    }
}

/// The seed of what a micro-batch of training draws while it is made.
pub(crate) fn seed_of_batch(seed: u64, step: u64, micro_batch: usize) -> u64 {
    Place { seed, step, micro_batch, training: true }.context(BATCH).random_seed()
}
