//! What a loop draws from Burn's generator between the calls of its trainer.

use std::cell::Cell;

use brigade_core::{DATA, keyed_seed, with_seed};
use burn::tensor::Device;

use crate::run::Session;

/// Seeds Burn's generator whenever the loop gets its turn: blocks have drawn from it meanwhile, and those of another stage other numbers. What the loop then draws follows from the
/// seed of the run, the step and the rank's place among those that read other data, so that all stages of a pipeline draw the same, and a resumed run what
/// an uninterrupted one would.
pub(super) struct LoopSeed {
    seed: u64,
    place: usize,
    device: Device,
    step: Cell<u64>,
    /// Calls since the step ended that neither read nor train.
    calls: Cell<u64>,
}

impl LoopSeed {
    pub(super) fn new(session: &Session) -> Self {
        let data = session.plan.mesh.members(session.rank(), &DATA);
        let own = data.iter().position(|rank| *rank == session.rank()).unwrap_or(0);
        let place = session.settings.strategy.place_among_launches().0 * data.len() + own;
        Self {
            seed: session.seed(),
            place,
            device: session.device(),
            step: Cell::new(0),
            calls: Cell::new(0),
        }
    }

    /// After a step, or before the first one: so many are done.
    pub(super) fn after_step(&self, step: u64) {
        self.step.set(step);
        self.calls.set(0);
        self.set("step", 0);
    }

    /// After reading the next step's micro-batches.
    pub(super) fn after_reading(&self) {
        self.set("batches", 0);
    }

    /// After anything else that runs blocks.
    pub(super) fn after_call(&self) {
        self.calls.set(self.calls.get() + 1);
        self.set("call", self.calls.get());
    }

    fn set(&self, what: &str, number: u64) {
        let key = format!("loop/{what}/{}/{number}/{}", self.step.get(), self.place);
        with_seed(&self.device, keyed_seed(self.seed, &key), || ());
    }
}
