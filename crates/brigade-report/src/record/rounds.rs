//! Records of what workers do together: outer steps, and rounds with servers.

use serde::{Deserialize, Serialize};

use super::null_is_nan;

/// One outer step, in which workers met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OuterStepRecord {
    /// How many workers took part; 0 if an older program did not say.
    #[serde(default)]
    pub workers: u64,
    /// Bytes that all ranks sent to other workers.
    pub bytes: u64,
    /// How long it took in seconds, with the wait for the slowest worker, on the rank on which that was longest.
    #[serde(deserialize_with = "null_is_nan")]
    pub seconds: f64,
    /// Updates of workers that were left out since the last one, because something was not finite.
    pub skipped_updates: u64,
}

/// One round of steps, in which workers did not wait for each other beyond a bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Its steps.
    pub steps: u64,
    /// How many updates servers made between a worker's pull of the parameters and the push of its gradient, in steps: the mean over
    /// all updates.
    #[serde(deserialize_with = "null_is_nan")]
    pub staleness_mean: f64,
    /// The most of any update.
    #[serde(deserialize_with = "null_is_nan")]
    pub staleness_max: f64,
    /// How often a worker waited at the bound for a slower one.
    pub waits: u64,
    /// How long, in seconds, all workers together.
    #[serde(deserialize_with = "null_is_nan")]
    pub wait_seconds: f64,
    /// Updates that were left out because something was not finite.
    pub skipped_updates: u64,
    /// Workers that were there at its end.
    #[serde(default)]
    pub workers: u64,
    /// How often a worker was lost, if workers are launched separately.
    #[serde(default)]
    pub lost_workers: u64,
}

impl RoundRecord {
    /// Adds a later round.
    pub(crate) fn add(&mut self, later: &Self) {
        let steps = self.steps + later.steps;
        let parts = [(self.staleness_mean, self.steps), (later.staleness_mean, later.steps)];
        self.staleness_mean =
            parts.iter().map(|(mean, steps)| mean * *steps as f64).sum::<f64>() / steps as f64;
        self.staleness_max = self.staleness_max.max(later.staleness_max);
        self.waits += later.waits;
        self.wait_seconds += later.wait_seconds;
        self.skipped_updates += later.skipped_updates;
        self.lost_workers += later.lost_workers;
        self.workers = later.workers;
        self.steps = steps;
    }
}
