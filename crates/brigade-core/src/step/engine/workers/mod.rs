//! Updates of a worker alone, and how the workers synchronise.

mod fragments;
pub(crate) mod inner_steps;
pub(crate) mod outer_in_flight;

use std::sync::Arc;
use std::time::Instant;

use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::dist::{BucketedCollectives, Buckets, Collectives, Traffic, add_traffic};
use crate::error::{Error, Result};
use crate::metrics::{Activity, Clock};
use crate::step::engine::workers::inner_steps::InnerSteps;
use crate::step::engine::{UntypedEngine, difference};
use crate::step::forward_backward::micro_batches::MicroBatches;
use crate::step::report::{OuterReport, StepReport};

/// Workers that are worlds of their own are further from each other than ranks are.
const OUTER: Buckets = Buckets { bytes: 25_000_000, within_hosts: true };

impl UntypedEngine {
    pub(super) fn inner_step(&mut self, batches: &mut dyn MicroBatches, learning_rate: f64) -> Result<()> {
        if !self.steps_alone() {
            return Err(Error::Model(format!(
                "step {} is not a step of one worker alone; call `Engine::step` for it",
                self.step + 1
            )));
        }
        let (mut clock, traffic) = self.begin_step();
        let found = self.update_by(batches, learning_rate, &mut clock)?;
        self.inner_steps.add(found);
        self.step_fragments(&mut clock)?;
        (self.window.clock, self.window.traffic_before) = (clock, Some(traffic));
        Ok(())
    }

    /// One update from this rank's micro-batches, of its worker alone. The report has neither memory nor times nor traffic.
    pub(crate) fn update_by(
        &mut self,
        batches: &mut dyn MicroBatches,
        learning_rate: f64,
        clock: &mut Clock,
    ) -> Result<StepReport> {
        let found = self.update_of_worker(batches, learning_rate, clock);
        // The other workers of this world do not end with it.
        found
            .map_err(|error| if self.store.groups.workers.size() > 1 { error.of_one_worker() } else { error })
    }

    /// This worker's number, where there are several.
    pub(crate) fn own_worker(&self) -> Option<usize> {
        let workers = &self.store.groups.workers;
        self.settings.worker.or_else(|| (workers.size() > 1).then(|| workers.rank()))
    }

    /// Whether all workers synchronise at the end of a step.
    pub(crate) fn is_outer(&self, step: u64) -> bool {
        self.settings.strategy.inner_steps().is_none_or(|every| step.is_multiple_of(every))
    }

    /// Fails between two outer steps, when each worker has values of its own.
    pub(crate) fn check_synced(&self) -> Result<()> {
        match self.settings.strategy.inner_steps().filter(|_| !self.is_outer(self.step)) {
            None => Ok(()),
            Some(every) => Err(Error::State(format!(
                "after step {} each worker has values of its own; they synchronise after every {every} steps",
                self.step
            ))),
        }
    }

    /// Adds up what the workers give for an outer step, after the last of their [inner steps](crate::Engine::inner_step). `workers` are the ranks at
    /// the same position in each worker's world. If it fails because a worker was lost, nothing has changed: it can be called again with the others.
    ///
    /// # Errors
    /// If a collective fails, or no inner step has been made.
    pub fn outer_sums(&mut self, workers: &Arc<dyn Collectives>) -> Result<OuterSums> {
        let mut clock = std::mem::take(&mut self.window.clock);
        // Nothing is computed meanwhile that smaller operations could hide behind.
        let workers = BucketedCollectives::over(workers.clone(), OUTER);
        let before = workers.traffic();
        let sums = self.sums_over_workers(&workers, &mut clock);
        self.window.clock = clock;
        Ok(OuterSums { elsewhere: difference(workers.traffic(), &before), ..sums? })
    }

    /// Makes an outer step along such sums. All ranks of the worker call it together, once all have them.
    ///
    /// # Errors
    /// If a collective of this worker fails.
    pub fn outer_step(&mut self, mut sums: OuterSums) -> Result<StepReport> {
        let mut clock = std::mem::take(&mut self.window.clock);
        let before = self.window.traffic_before.take().unwrap_or_else(|| self.store.groups.traffic());
        let elsewhere = std::mem::take(&mut sums.elsewhere);
        let found = self.step_along(sums, &mut clock)?;
        let mut traffic = difference(self.store.groups.traffic(), &before);
        add_traffic(&mut traffic, elsewhere);
        Ok(StepReport { clock, traffic, memory: self.memory(), ..found })
    }

    pub(crate) fn sums_over_workers(
        &mut self,
        workers: &Arc<dyn Collectives>,
        clock: &mut Clock,
    ) -> Result<OuterSums> {
        let began = Instant::now();
        let sent = || workers.traffic().values().map(|(_, bytes)| bytes).sum::<u64>();
        let before = sent();
        let Some(last) = &self.inner_steps.last else {
            return Err(Error::Model("an outer step needs inner steps before it".into()));
        };
        let pending = workers.all_gather_scalars(self.inner_steps.to_words(last.metrics.len()));
        let words = clock.waiting("outer_step", || pending.wait())?;
        let made: f64 = words.iter().map(|words| words[0]).sum();
        let sums = if made > 0.0 { self.add_over_workers(workers, clock)? } else { Vec::new() };
        let (workers, sent) = (workers.size(), sent() - before);
        Ok(OuterSums { words, sums, workers, sent, elsewhere: Traffic::new(), began })
    }

    /// Makes an outer step. Gives the report on all inner steps of all workers since the one before.
    pub(crate) fn step_along(&mut self, sums: OuterSums, clock: &mut Clock) -> Result<StepReport> {
        let OuterSums { words, sums, workers, sent, began, .. } = sums;
        let started = Instant::now();
        let InnerSteps { last, bubble, in_flight, sent: sent_before, outer_time, .. } =
            std::mem::take(&mut self.inner_steps);
        let Some(last) = last else {
            return Err(Error::Model("an outer step needs inner steps before it".into()));
        };
        let sum = |word: usize| words.iter().map(|words| words[word]).sum::<f64>();
        let (made, skipped, targets, weight) = (sum(0), sum(1), sum(2), sum(3));
        if made > 0.0 {
            self.update_over_workers(sums, workers, clock)?;
            clock.record(Activity::Phase("outer step"), Some(started));
        }
        let names = last.metrics.into_keys().enumerate();
        let (sent, time) = (sent_before + sent, outer_time + began.elapsed());
        let outer = OuterReport { workers, skipped: skipped as u64, sent, time };
        let metrics: SortedMap<_, _> = names.map(|(index, name)| (name, sum(6 + index) / weight)).collect();
        Ok(StepReport {
            loss: sum(4) / weight,
            metrics,
            grad_norm: sum(5) / made,
            targets: targets as u64,
            target_weight: weight,
            skipped: made == 0.0,
            outer: Some(outer),
            bubble,
            in_flight,
            ..last
        })
    }
}

/// What an outer step is made of: sums over the workers.
pub struct OuterSums {
    /// What each worker found in its inner steps.
    words: Vec<Vec<f64>>,
    sums: Vec<(usize, Tensor<1>)>,
    workers: usize,
    /// Bytes that this rank sent.
    sent: u64,
    /// What it sent in groups that are not those of its world.
    elsewhere: Traffic,
    began: Instant,
}
