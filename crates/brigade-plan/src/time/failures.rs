//! What failures cost: work that is lost since the last checkpoint, and how often to save.

use serde::Serialize;

/// Failures of a cluster, and what a checkpoint costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Failures {
    /// Seconds from one failure of the cluster to the next.
    pub mtbf: f64,
    /// Seconds for which a checkpoint pauses training.
    pub save: f64,
    /// Seconds after a save until the checkpoint is written: a failure before falls back to the one before it.
    pub write: f64,
    /// Seconds until training continues after a failure.
    pub restart: f64,
}

impl Failures {
    /// The interval by Young 1974, "A first order approximation to the optimum checkpoint interval": `sqrt(2 save mtbf)`.
    pub fn young_interval(&self) -> f64 {
        (2.0 * self.save * self.mtbf).sqrt()
    }

    /// The interval by Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", equation 37: between the end of one
    /// save and the begin of the next.
    pub fn daly_interval(&self) -> f64 {
        if self.save >= 2.0 * self.mtbf {
            return self.mtbf;
        }
        let ratio = self.save / (2.0 * self.mtbf);
        self.young_interval() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - self.save
    }

    /// Seconds of work that a failure loses on average with this interval: half of it, and what a checkpoint is not yet written for.
    pub fn work(&self, interval: f64) -> f64 {
        (interval + self.save) / 2.0 + self.write
    }

    /// The share of time that is lost with this interval: saves, and with each failure work and the restart.
    pub fn lost(&self, interval: f64) -> f64 {
        if !(self.mtbf.is_finite() && interval > 0.0) {
            return 0.0;
        }
        let saves = self.save / (interval + self.save);
        let failures = (self.work(interval) + self.restart) / self.mtbf;
        (saves + failures).min(1.0)
    }
}
