//! Random numbers of the data.

use crate::model::activation::Activation;
use crate::model::random_state::with_seed;
use crate::step::engine::Engine;
use crate::step::forward_backward::tape::Place;

/// What stands for the name of a block where a micro-batch is made.
const BATCH: &str = "(batch)";

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Runs `make`, which makes the `k`-th of this rank's `count` micro-batches of the next step. What it draws from Burn's
    /// generator (an augmentation, say) is a function of the seed, the step and the micro-batch's number in the global batch,
    /// as in [blocks](crate::Block), so it is the same on any mesh and on all stages of a pipeline.
    pub fn make_batch<R>(&self, k: usize, count: usize, make: impl FnOnce() -> R) -> R {
        let (mesh, rank) = (self.store.groups.mesh(), self.store.groups.world.rank());
        let (own, per_update) = (self.window.count + k, self.settings.strategy.period() * count);
        let micro_batch = self.store.zero.micro_batch_number(mesh, rank, own, per_update);
        let step = self.step_of_update(self.step + 1);
        let place = Place { seed: self.seed, step, micro_batch, training: true };
        with_seed(&self.store.device, place.context(BATCH).random_seed(), make)
    }

    /// The step with whose update step `step` ends.
    pub(crate) fn step_of_update(&self, step: u64) -> u64 {
        let strategy = &self.settings.strategy;
        (step..step + strategy.period() as u64).find(|step| strategy.synchronizes(*step)).unwrap_or(step)
    }
}
