//! What a loop draws from Burn's generator between the calls of its trainer.

use std::cell::Cell;
use std::rc::Rc;

use brigade_core::{DATA, keyed_seed, with_seed};
use burn::tensor::Device;

use super::step::nonfinite::NonFiniteSteps;
use crate::run::Session;

/// Seeds Burn's generator whenever the loop gets its turn: blocks have drawn from it meanwhile, and those of another stage other numbers. What the loop then draws follows from the
/// seed of the run, the step, what was called last, and the rank's place among those that read other data, so that all stages of a pipeline draw the same, and a resumed run what
/// an uninterrupted one would. After a rollback it draws other numbers, as a loop that makes its own batches must.
pub(super) struct LoopSeed {
    seed: u64,
    place: usize,
    device: Device,
    step: Cell<u64>,
    /// The last call that reads, trains or saves.
    phase: Cell<&'static str>,
    /// Other calls since then.
    calls: Cell<u64>,
    nonfinite: Rc<NonFiniteSteps>,
}

impl LoopSeed {
    pub(super) fn new(session: &Session, nonfinite: Rc<NonFiniteSteps>) -> Self {
        let data = session.plan.mesh.members(session.rank(), &DATA);
        let own = data.iter().position(|rank| *rank == session.rank()).unwrap_or(0);
        let place = session.settings.strategy.place_among_launches().0 * data.len() + own;
        let (step, phase, calls) = (Cell::new(0), Cell::new("saved"), Cell::new(0));
        Self { seed: session.seed(), place, device: session.device(), step, phase, calls, nonfinite }
    }

    /// After a save, or where a run begins: this many steps are done.
    pub(super) fn after_save(&self, step: u64) {
        self.begin("saved", step);
    }

    /// After a step: this many are done.
    pub(super) fn after_step(&self, step: u64) {
        self.begin("step", step);
    }

    /// After reading the next step's micro-batches.
    pub(super) fn after_reading(&self) {
        self.begin("batches", self.step.get());
    }

    /// After anything else that runs blocks.
    pub(super) fn after_call(&self) {
        self.calls.set(self.calls.get() + 1);
        self.set();
    }

    /// The same seed, or another one if steps were not finite.
    pub(super) fn after_rollbacks(&self, seed: u64) -> u64 {
        match self.nonfinite.count() {
            0 => seed,
            count => keyed_seed(seed, &format!("after {count}")),
        }
    }

    fn begin(&self, phase: &'static str, step: u64) {
        self.phase.set(phase);
        self.step.set(step);
        self.calls.set(0);
        self.set();
    }

    fn set(&self) {
        let (phase, step, calls) = (self.phase.get(), self.step.get(), self.calls.get());
        let seed = keyed_seed(self.seed, &format!("loop/{phase}/{step}/{calls}/{}", self.place));
        with_seed(&self.device, self.after_rollbacks(seed), || ());
    }
}
