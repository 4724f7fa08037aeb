//! What a worker needs of a run to compute shares of its steps.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_core::{Activation, Batch, BoxError, CheckBlocks, LrScheduler, Share};
use brigade_data::Sampler;

use crate::run::Session;
use crate::training_setup::{Data, Training, check_read_again};

/// Reads shares from the data of a run.
pub(crate) struct ShareReader<'a, I, O, T> {
    session: &'a Session,
    training: &'a Training<I, O, T>,
    schedule: &'a LrScheduler,
    sampler: &'a Sampler,
    data: &'a Arc<dyn Data<I, T>>,
    /// How many shares were read, and how long that took.
    pub count: Cell<usize>,
    pub waited: Cell<Duration>,
    pub failure: Failure,
}

impl<'a, I: Activation + Clone, O, T> ShareReader<'a, I, O, T> {
    /// # Errors
    /// If the run has no data of its own.
    pub(crate) fn new(
        session: &'a Session,
        training: &'a Training<I, O, T>,
        schedule: &'a LrScheduler,
        sampler: Option<&'a Sampler>,
    ) -> anyhow::Result<Self> {
        let sources = sampler.zip(training.train.as_ref());
        let (sampler, data) =
            sources.context("this run has no data of its own (`Training::without_data`)")?;
        let (count, waited, failure) = (Cell::new(0), Cell::new(Duration::ZERO), Failure::default());
        Ok(Self { session, training, schedule, sampler, data, count, waited, failure })
    }

    /// The learning rate of a step.
    pub(crate) fn learning_rate(&self, step: u64) -> f64 {
        let own = self.training.update.learning_rate_factor(step - 1);
        self.session.plan.learning_rate * own.unwrap_or_else(|| self.schedule.factor(step - 1))
    }

    /// The micro-batches of a share, whose step has this position in the data.
    pub(crate) fn read(&self, share: Share, position: u64) -> Result<Vec<Batch<I, T>>, BoxError> {
        let (count, device) = (self.session.plan.gradient_accumulation_steps, self.session.device());
        let began = Instant::now();
        let micro_batch = |k: usize| {
            let samples = self.sampler.global_micro_batch(position, share.number * count + k)?;
            let seed = share.batch_seed(k, count);
            let batch = self.data.read(samples.clone(), &device, seed)?;
            if self.session.plan.engine.check_blocks == CheckBlocks::Always {
                check_read_again(&**self.data, &batch, samples, &device, seed)?;
            }
            Ok(batch)
        };
        let read = || -> anyhow::Result<Vec<Batch<I, T>>> {
            self.session.go_on(share.step)?;
            (0..count).map(micro_batch).collect()
        };
        let batches = read();
        self.waited.set(self.waited.get() + began.elapsed());
        self.count.set(self.count.get() + 1);
        batches.map_err(|error| self.failure.keep(error))
    }
}

/// An error of what the engine called: the engine's own holds it as text.
#[derive(Default)]
pub(crate) struct Failure(RefCell<Option<anyhow::Error>>);

impl Failure {
    /// Keeps an error; gives its text for the engine.
    pub(crate) fn keep(&self, error: anyhow::Error) -> BoxError {
        let text = error.to_string();
        *self.0.borrow_mut() = Some(error);
        text.into()
    }

    /// The error that was kept, or else what the engine gave.
    pub(crate) fn or<V>(self, result: brigade_core::Result<V>) -> anyhow::Result<V> {
        match self.0.into_inner() {
            Some(error) => Err(error),
            None => Ok(result?),
        }
    }
}

impl Session {
    /// Says that this rank is alive, and fails after Ctrl-C.
    pub(crate) fn go_on(&self, step: u64) -> anyhow::Result<()> {
        self.heartbeat.send(&format!("step {step}: training"));
        self.check_interrupt()
    }
}
