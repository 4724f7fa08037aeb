//! Rounds of steps in which workers do not wait for each other.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::{Context, bail};
use brigade_core::{Activation, Batch, BoxError, Share, StepReport};

use super::Trainer;
use crate::run::Session;

impl<I: Activation + Clone, O: Activation, T: Clone> Trainer<'_, I, O, T> {
    /// Makes a round of this many steps, from the data of the run.
    pub(super) fn round(&mut self, batches: Vec<Batch<I, T>>, steps: u64) -> anyhow::Result<StepReport> {
        if !batches.is_empty() {
            bail!(
                "with strategy.staleness (--staleness) above 0 workers take shares of the data as they become free, so a loop cannot give \
                batches of its own; pass on those of `Trainer::next_batches`, or set --staleness 0"
            );
        }
        let (session, done) = (self.session, self.progress.step);
        let first_position = self.progress.position - steps;
        let (training, schedule, peak) = (&self.training, &self.schedule, session.plan.learning_rate);
        let learning_rate = |step: u64| {
            let own = training.update.learning_rate_factor(step - 1);
            peak * own.unwrap_or_else(|| schedule.factor(step - 1))
        };
        let (sampler, data) = (self.sampler.as_ref(), training.train.as_ref());
        let (sampler, data) =
            sampler.zip(data).context("this run has no data of its own (`Training::without_data`)")?;
        let count = session.plan.gradient_accumulation_steps;
        let device = session.device();
        let waited = RefCell::new(std::time::Duration::ZERO);
        let read = |share: Share| -> anyhow::Result<Vec<Batch<I, T>>> {
            session.go_on(share.step)?;
            let (began, position) = (Instant::now(), first_position + share.step - 1 - done);
            let micro_batch = |k: usize| {
                let samples = sampler.global_micro_batch(position, share.number * count + k)?;
                data.read(samples, &device, share.batch_seed(k, count))
            };
            let batches = (0..count).map(micro_batch).collect();
            *waited.borrow_mut() += began.elapsed();
            batches
        };
        let workers = self.engine.workers() as u64;
        let failure = Failure::default();
        let keep = |error| failure.keep(error);
        let report =
            self.engine.round(&learning_rate, &mut |share| read(share).map_err(keep), &mut |updates| {
                session.go_on(done + updates / workers + 1).map_err(keep)
            });
        self.data_wait += waited.into_inner();
        failure.or(report)
    }
}

/// An error of what the engine called: the engine's own holds it as text.
#[derive(Default)]
pub(super) struct Failure(RefCell<Option<anyhow::Error>>);

impl Failure {
    /// Keeps an error; gives its text for the engine.
    pub(super) fn keep(&self, error: anyhow::Error) -> BoxError {
        let text = error.to_string();
        *self.0.borrow_mut() = Some(error);
        text.into()
    }

    /// The error that was kept, or else what the engine gave.
    pub(super) fn or<V>(self, result: brigade_core::Result<V>) -> anyhow::Result<V> {
        match self.0.into_inner() {
            Some(error) => Err(error),
            None => Ok(result?),
        }
    }
}

impl Session {
    /// Says that this rank is alive, and fails after Ctrl-C.
    pub(super) fn go_on(&self, step: u64) -> anyhow::Result<()> {
        self.heartbeat.send(&format!("step {step}: training"));
        self.check_interrupt()
    }
}
