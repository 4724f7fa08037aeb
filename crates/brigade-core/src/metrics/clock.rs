//! Where a step's time went.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a rank waits for: a sum of gradients, parameters, a few numbers, or what a neighbouring stage sends.
pub const WAITS: [&str; 5] = ["all_reduce", "reduce_scatter", "all_gather", "all_gather_scalars", "pipeline"];

/// Time that one rank spent computing and waiting in a step.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// In forward passes, without the waits.
    pub forward: Duration,
    /// In backward passes, recomputed forward passes, and accumulating gradients, without the waits.
    pub backward: Duration,
    /// In the optimizer, the norm, and binding new parameters to the blocks, without the waits.
    pub optimizer: Duration,
    /// Waiting, by what for: one of [`WAITS`].
    pub waits: BTreeMap<&'static str, Duration>,
}

impl Clock {
    pub(crate) fn waiting<R>(&mut self, what: &'static str, wait: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = wait();
        self.waited(what, started.elapsed());
        result
    }

    pub(crate) fn waited(&mut self, what: &'static str, duration: Duration) {
        *self.waits.entry(what).or_default() += duration;
    }

    /// All waits together.
    pub fn comm_wait(&self) -> Duration {
        self.waits.values().sum()
    }
}
