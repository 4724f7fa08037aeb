//! Updates of a worker alone, and how the workers meet.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::metrics::Clock;
use crate::model::activation::Activation;
use crate::model::batch::Batch;
use crate::step::engine::Engine;
use crate::step::report::{OuterReport, StepReport};

impl<I, O, T> Engine<I, O, T>
where
    I: Activation + Clone,
    O: Activation,
    T: Clone,
{
    /// Runs one step that makes an update of this worker alone, without communicating with other workers. Its loss is part of
    /// the next [`step`](Self::step)'s report, which is of all workers.
    ///
    /// # Errors
    /// As those of [`step`](Self::step), and if the next step is [no such one](Self::steps_alone).
    pub fn inner_step(&mut self, batches: Vec<Batch<I, T>>, learning_rate: f64) -> Result<()> {
        if !self.steps_alone() {
            return Err(Error::Model(format!(
                "step {} is not a step of one worker alone; call `Engine::step` for it",
                self.step + 1
            )));
        }
        let (mut clock, traffic) = self.begin_step();
        let found = self.update_by(&batches, learning_rate, &mut clock)?;
        self.inner_steps.add(&found);
        (self.window.clock, self.window.traffic_before) = (clock, Some(traffic));
        Ok(())
    }

    /// Whether all workers meet at the end of a step.
    pub(crate) fn is_outer(&self, step: u64) -> bool {
        self.settings.strategy.inner_steps().is_none_or(|every| step.is_multiple_of(every))
    }

    /// Bytes that this rank has sent over the group in which workers meet.
    fn sent_to_workers(&self) -> u64 {
        self.store.groups.workers.traffic().values().map(|(_, bytes)| bytes).sum()
    }

    /// Fails between two outer steps, when each worker has values of its own.
    pub(crate) fn check_met(&self) -> Result<()> {
        match self.settings.strategy.inner_steps().filter(|_| !self.is_outer(self.step)) {
            None => Ok(()),
            Some(every) => Err(Error::State(format!(
                "after step {} each worker has values of its own; they meet after every {every} steps",
                self.step
            ))),
        }
    }

    /// Ends a worker's steps since the last outer one, of which this is the last, with an outer step. Gives the report on all steps of all workers.
    pub(crate) fn end_inner_steps(&mut self, last: StepReport, clock: &mut Clock) -> Result<StepReport> {
        let began = Instant::now();
        let before = self.sent_to_workers();
        self.inner_steps.add(&last);
        let own = std::mem::take(&mut self.inner_steps);
        let pending = self.store.groups.workers.all_gather_scalars(own.to_words(last.metrics.len()));
        let all = clock.waiting("outer_step", || pending.wait())?;
        let sum = |word: usize| all.iter().map(|words| words[word]).sum::<f64>();
        let (made, skipped, targets, weight) = (sum(0), sum(1), sum(2), sum(3));
        if made > 0.0 {
            self.outer_step(clock)?;
        }
        let names = last.metrics.into_keys().enumerate();
        let sent = self.sent_to_workers() - before;
        let outer = OuterReport { skipped: skipped as u64, sent, time: began.elapsed() };
        let metrics: BTreeMap<_, _> = names.map(|(index, name)| (name, sum(6 + index) / weight)).collect();
        Ok(StepReport {
            loss: sum(4) / weight,
            metrics,
            grad_norm: sum(5) / made,
            targets: targets as u64,
            target_weight: weight,
            skipped: made == 0.0,
            outer: Some(outer),
            bubble: own.bubble,
            in_flight: own.in_flight,
            ..last
        })
    }
}
