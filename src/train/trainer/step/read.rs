//! Reading this rank's micro-batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use brigade_core::{Activation, Batch, CheckBlocks};
use brigade_report::timeline::Track;

use crate::train::trainer::Trainer;
use crate::training_setup::{Ahead, Data, Order, Reader, check_read_again};

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Reads this rank's micro-batches of the next step; `None` when the run is over. What was read counts as consumed in checkpoints of the step that
    /// is made next or, where there are additional models, at once. A checkpoint that was [due](Self::save_is_due) before, and that the loop did not save, is saved first.
    ///
    /// # Errors
    /// If data cannot be read, the run was interrupted, or the machine of a rank is about to be taken away, for which a
    /// checkpoint has then been saved.
    pub fn next_batches(&mut self) -> anyhow::Result<Option<Vec<Batch<I, T>>>> {
        self.save_what_is_due()?;
        self.proceed()?;
        if self.is_over() {
            self.reader = None;
            return Ok(None);
        }
        self.begin()?;
        self.step_learning_rate.set(self.learning_rate());
        self.begin_profiled_step()?;
        self.begin_update();
        self.send_heartbeat("waiting for data");
        if self.engine.is_server() || self.engine.steps_of_round().is_some() {
            // Servers run no micro-batches, and in a round workers read each share when they take it.
            self.is_read = true;
            self.progress.position += self.engine.steps_of_round().unwrap_or(1);
            self.loop_seed.after_reading();
            return Ok(Some(Vec::new()));
        }
        let is_first = self.reader.is_none();
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.read_from(self.progress.position)?,
        };
        let seed = |k: usize, count: usize| self.engine.batch_seed(k, count);
        let asked = Instant::now();
        let (batches, waited) = reader.next(&self.session.device(), &seed)?;
        if let Some(profile) = &mut self.profile {
            profile.add(Track::Waits, "data", asked, asked + waited);
            profile.add(Track::Schedule, "make batches", asked + waited, Instant::now());
        }
        self.reader = Some(reader);
        self.check_reading(&batches, is_first)?;
        self.is_read = true;
        self.progress.position += 1;
        self.data_wait += waited;
        self.send_heartbeat("training");
        self.loop_seed.after_reading();
        Ok(Some(batches))
    }

    /// Where blocks are run twice, reads micro-batches a second time as well, and compares. `is_first`: whether these are the first that were
    /// read.
    fn check_reading(&self, batches: &[Batch<I, T>], is_first: bool) -> anyhow::Result<()> {
        let count = match self.session.plan.engine.check_blocks {
            CheckBlocks::Always => batches.len(),
            CheckBlocks::First if is_first => 1,
            CheckBlocks::First | CheckBlocks::Never => return Ok(()),
        };
        let (order, data) = self.order()?;
        let samples = order(self.progress.position)?;
        for (k, (batch, samples)) in batches.iter().zip(samples).take(count).enumerate() {
            let seed = self.engine.batch_seed(k, batches.len());
            check_read_again(&*data, batch, samples, &self.session.device(), seed)?;
        }
        Ok(())
    }

    /// Reads this rank's micro-batches of samples from a position in the data on.
    fn read_from(&self, position: u64) -> anyhow::Result<Box<dyn Reader<I, T>>> {
        let (order, data) = self.order()?;
        let (train, comm) = (&self.session.settings.train, &self.session.settings.comm);
        // Other ranks would wait no longer for this one.
        let deadline = Duration::from_secs_f64(comm.train_timeout_seconds);
        let ahead = Ahead { readers: train.readers, steps: train.read_ahead, deadline };
        data.read_ahead(position, order, ahead)
    }

    /// The data, and which samples this rank reads.
    fn order(&self) -> anyhow::Result<(Order, Arc<dyn Data<I, T>>)> {
        let (Some(sampler), Some(data)) = (self.sampler.clone(), self.training.train.clone()) else {
            bail!(
                "this run has no data of its own (`Training::without_data`); give batches to `Trainer::step`"
            );
        };
        let plan = &self.session.plan;
        let (zero, count) = (plan.engine.zero, plan.gradient_accumulation_steps);
        let (mesh, rank) = (plan.mesh.clone(), self.session.rank());
        let every = self.session.settings.train.sync_every;
        let (worker, workers) = self.session.settings.strategy.place_among_launches();
        let of_worker = count * plan.data_ranks();
        let in_a_step = of_worker * workers;
        let order: Order = Box::new(move |position| {
            // The micro-batches between two updates are numbered together.
            let steps = (position % every as u64) as usize;
            let first = position - steps as u64;
            let samples = |k: usize| {
                let number = zero.micro_batch_number(&mesh, rank, steps * count + k, every * count);
                let number = worker * of_worker + number;
                let position = first + (number / in_a_step) as u64;
                Ok(sampler.global_micro_batch(position, number % in_a_step)?)
            };
            (0..count).map(samples).collect()
        });
        Ok((order, data))
    }
}
