//! What a rank knows of the steps since the last update.

use brigade_random::keyed_seed;
use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::Traffic;
use crate::error::{Error, Result};
use crate::metrics::Clock;
use crate::model::batch::TargetSum;
use crate::step::forward_backward::interpreter::State;
use crate::step::running_state::Terms;

/// The micro-batches of a rank since the last update, numbered from 0.
#[derive(Default)]
pub(crate) struct Window {
    /// How many there were, in how many passes.
    pub count: usize,
    passes: usize,
    /// Their valid targets.
    pub targets: TargetSum,
    /// The loss of each, where this rank knows it.
    losses: SortedMap<usize, Tensor<1>>,
    /// The metrics of each, where this rank computes the loss.
    pub metrics: SortedMap<usize, Vec<Tensor<1>>>,
    /// What each adds to running state.
    pub running: SortedMap<usize, Terms>,
    /// Of each pass, whether blocks have left something for the second halves of their backwards, where that must be alike on all ranks.
    leaves: Vec<SortedMap<usize, bool>>,
    /// Most micro-batches between forward and backward.
    pub in_flight: usize,
    /// Where this rank's time went.
    pub clock: Clock,
    /// The traffic before the first step.
    pub traffic_before: Option<Traffic>,
}

impl Window {
    /// Checks that the next pass has as many micro-batches as those before it, and at least one.
    pub(crate) fn check(&self, count: usize) -> Result<()> {
        let allowed = match self.count.checked_div(self.passes) {
            None if count > 0 => return Ok(()),
            None => "each rank needs at least one".to_owned(),
            Some(before) if before == count => return Ok(()),
            Some(before) => format!("the earlier steps of this update had {before}"),
        };
        let were = if count == 1 { "micro-batch was" } else { "micro-batches were" };
        // Only this rank may know.
        Err(Error::Model(format!("{count} {were} given to a step on this rank: {allowed}")))
    }

    /// Adds what a pass found.
    pub(crate) fn add(&mut self, count: usize, targets: &TargetSum, state: State) {
        let before = self.count;
        self.losses.extend(state.losses.into_iter().map(|(index, loss)| (before + index, loss)));
        self.metrics.extend(state.metrics.into_iter().map(|(index, values)| (before + index, values)));
        self.running.extend(state.running.into_iter().map(|(index, terms)| (before + index, terms)));
        if !state.leaves.is_empty() {
            self.leaves.push(state.leaves);
        }
        self.in_flight = self.in_flight.max(state.most_in_flight);
        (self.count, self.passes) = (before + count, self.passes + 1);
        self.targets.merge(targets);
    }

    /// A number that differs from another rank's, as good as always, where that one's blocks have left other second halves; 0 where that may be.
    pub(crate) fn second_halves(&self) -> f64 {
        if self.leaves.is_empty() {
            return 0.0;
        }
        // What a number of 64 bits holds without rounding.
        (keyed_seed(0, &format!("{:?}", self.leaves)) >> 11) as f64
    }

    /// Losses and metrics of this many micro-batches.
    pub(crate) fn of(
        count: usize,
        losses: SortedMap<usize, Tensor<1>>,
        metrics: SortedMap<usize, Vec<Tensor<1>>>,
    ) -> Self {
        Self { count, losses, metrics, ..Self::default() }
    }

    /// The numbers that are on the device: the losses, then the metrics.
    pub(crate) fn numbers(&self) -> Vec<Tensor<1>> {
        self.losses.values().chain(self.metrics.values().flatten()).cloned().collect()
    }

    /// From the values of [`numbers`](Self::numbers): the loss of each micro-batch, 0 where this rank does not know it, and the metrics of each.
    pub(crate) fn found<'v>(&self, numbers: &'v [f32]) -> (Vec<f64>, impl Iterator<Item = &'v [f32]>) {
        let (of_losses, of_metrics) = numbers.split_at(self.losses.len());
        let mut losses = vec![0.0; self.count];
        for (k, loss) in self.losses.keys().zip(of_losses) {
            if let Some(place) = losses.get_mut(*k) {
                *place = f64::from(*loss);
            }
        }
        let names = self.metrics.values().next().map_or(1, Vec::len);
        (losses, of_metrics.chunks(names.max(1)))
    }
}
