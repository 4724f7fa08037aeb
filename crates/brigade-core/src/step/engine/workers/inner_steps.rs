//! What updates of a worker alone found.

use std::time::Duration;

use crate::step::report::StepReport;

/// What updates of this worker found since the last outer step.
#[derive(Debug, Default)]
pub(crate) struct InnerSteps {
    /// Updates that were made, and those that were left out because something was not finite.
    made: f64,
    skipped: f64,
    targets: f64,
    weight: f64,
    /// Of the updates that were made: losses and metrics times the weight of their targets, and norms.
    loss: f64,
    metrics: Vec<f64>,
    norm: f64,
    pub bubble: Duration,
    pub in_flight: usize,
    /// Of outer steps of fragments: bytes that this rank sent to other workers, and the time it took, with waits.
    pub sent: u64,
    pub outer_time: Duration,
    /// Of the last one.
    pub last: Option<StepReport>,
}

impl InnerSteps {
    pub(crate) fn add(&mut self, found: StepReport) {
        self.bubble += found.bubble;
        self.in_flight = self.in_flight.max(found.in_flight);
        match found.skipped {
            true if found.is_nonfinite() => self.skipped += 1.0,
            // Without a valid target there is nothing to leave out.
            true => {}
            false => self.add_made(&found),
        }
        self.last = Some(found);
    }

    /// Updates that were made.
    pub(crate) fn made(&self) -> f64 {
        self.made
    }

    fn add_made(&mut self, found: &StepReport) {
        self.made += 1.0;
        self.targets += found.targets as f64;
        self.weight += found.target_weight;
        self.loss += found.loss * found.target_weight;
        self.norm += found.grad_norm;
        self.metrics.resize(found.metrics.len(), 0.0);
        let sums = self.metrics.iter_mut().zip(found.metrics.values());
        sums.for_each(|(sum, value)| *sum += value * found.target_weight);
    }

    /// What the workers tell each other of it when they synchronise, with this many metrics.
    pub(crate) fn to_words(&self, metrics: usize) -> Vec<f64> {
        let mut words = vec![self.made, self.skipped, self.targets, self.weight, self.loss, self.norm];
        words.extend(&self.metrics);
        words.resize(6 + metrics, 0.0);
        words
    }
}
