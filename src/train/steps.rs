//! The training loop: step after step, with what comes between them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_core::{Activation, Batch, DATA, Engine, Evaluation, StepReport};
use brigade_data::{Prefetcher, Sampler};
use brigade_report::{CheckpointRecord, DeviceMemory, Reporter};

use crate::checkpoint::{RunProgress, Saver};
use crate::dataset::Dataset;
use crate::run::Session;
use crate::training::Training;

use super::Trained;
use super::step_stats::{StepStats, StepStatus, gather, record};

/// How many steps ahead of the current one data are read.
pub(super) const READ_AHEAD: usize = 4;

/// A run under way on one rank.
pub(super) struct Run<'a, D: Dataset, O> {
    pub session: &'a Session,
    pub engine: Engine<D::Input, O, D::Target>,
    pub saver: Saver,
    /// On rank 0.
    pub reporter: Option<Reporter>,
    pub training: Training<D, O>,
    pub sampler: Sampler,
    pub progress: RunProgress,
    /// The description of the run in its checkpoints.
    pub description: serde_json::Value,
    pub loss: f64,
    pub validation_loss: Option<f64>,
    /// Checkpoints that were completed since the last record.
    pub saved: Vec<CheckpointRecord>,
    /// The peak of this rank's device memory so far, in bytes.
    pub device_peak: u64,
}

/// This rank's micro-batches of samples, step by step.
type Reader<D> = Prefetcher<Vec<Vec<<D as Dataset>::Item>>>;

impl<D: Dataset, O: Activation> Run<'_, D, O> {
    /// Trains until the last step, or until the machine is taken away.
    pub(super) fn train(mut self) -> anyhow::Result<Trained<D::Input, O, D::Target>> {
        let mut reader = self.read_from(self.progress.position)?;
        self.session.mark_started();
        while self.progress.step < self.session.settings.train.steps {
            self.session.check_interrupt()?;
            let started = Instant::now();
            let (mut items, mut data_wait) = self.read(&mut reader)?;
            while !self.engine.synchronizes() {
                let batches = self.batches(items);
                self.engine.accumulate(batches)?;
                self.progress.position += 1;
                self.progress.step += 1;
                self.session.check_interrupt()?;
                let (next, waited) = self.read(&mut reader)?;
                (items, data_wait) = (next, data_wait + waited);
            }
            let (report, learning_rate) = self.step(items)?;
            let stats = self.gather(&report, data_wait, started.elapsed())?;
            // All ranks have computed a step.
            self.session.group().warmed_up();
            let outcome = self.saver.advance(&stats.saving)?;
            self.save_ended(outcome)?;
            self.progress.position += 1;
            if report.skipped && self.rolled_back(&report)? {
                reader = self.read_from(self.progress.position)?;
                continue;
            }
            self.progress.step += 1;
            self.loss = report.loss;
            let last = self.progress.step == self.session.settings.train.steps;
            let validation = self.validate_if_due(last)?;
            // The step is recorded before a checkpoint is saved from which the run would continue after it.
            if let Some(reporter) = &mut self.reporter {
                let checkpoint = (!self.saved.is_empty()).then(|| self.saved.remove(0));
                reporter.step(&record(&report, learning_rate, &stats, validation, checkpoint))?;
            }
            if self.saver.is_due(self.progress.step, last) {
                self.save()?;
            }
            if stats.preempted && !last {
                return self.exit_preempted();
            }
        }
        drop(reader);
        self.finish()
    }

    /// Reports to the launcher that this rank is alive, and what it is doing.
    pub(super) fn send_heartbeat(&self, what: &str) {
        self.session.heartbeat.send(&format!("step {}: {what}", self.progress.step + 1));
    }

    /// This rank's samples of the next step, and how long it waited for them.
    fn read(&self, reader: &mut Reader<D>) -> anyhow::Result<(Vec<Vec<D::Item>>, Duration)> {
        self.send_heartbeat("waiting for data");
        let read = reader.next().context("reading data")?;
        self.send_heartbeat("training");
        Ok(read)
    }

    fn batches(&self, items: Vec<Vec<D::Item>>) -> Vec<Batch<D::Input, D::Target>> {
        let device = self.session.device();
        items.into_iter().map(|items| self.training.train.batch(items, &device)).collect()
    }

    fn step(&mut self, items: Vec<Vec<D::Item>>) -> anyhow::Result<(StepReport, f64)> {
        let batches = self.batches(items);
        let plan = &self.session.plan;
        let learning_rate = plan.learning_rate * plan.schedule.factor(self.progress.step);
        Ok((self.engine.step(batches, learning_rate)?, learning_rate))
    }

    fn gather(
        &mut self,
        report: &StepReport,
        data_wait: Duration,
        step: Duration,
    ) -> anyhow::Result<StepStats> {
        let status = StepStatus { saving: self.saver.progress(), preempted: self.session.is_preempted() };
        let device = self.session.device_memory().map(|memory| {
            self.device_peak = self.device_peak.max(memory.reserved);
            DeviceMemory { reserved_peak: self.device_peak, ..memory }
        });
        gather(self.session.collectives().as_ref(), report, data_wait, step, device, status)
    }

    fn validate_if_due(&mut self, last: bool) -> anyhow::Result<Option<Evaluation>> {
        let every = self.session.settings.train.validate_every;
        let due = last || (every > 0 && self.progress.step.is_multiple_of(every));
        let Some(data) = self.training.validation.clone().filter(|_| due) else { return Ok(None) };
        self.send_heartbeat("validating");
        let validation = self.session.validate(&mut self.engine, &*data)?;
        self.validation_loss = Some(validation.loss);
        Ok(Some(validation))
    }

    pub(super) fn note(&mut self, text: &str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.note(text);
        }
    }

    /// Reads this rank's micro-batches of samples from a position in the data on, on a thread of its own.
    fn read_from(&self, position: u64) -> anyhow::Result<Reader<D>> {
        let plan = &self.session.plan;
        let (zero, count) = (plan.engine.zero, plan.gradient_accumulation_steps);
        let (mesh, rank) = (plan.mesh.clone(), self.session.rank());
        let (every, in_a_step) = (self.session.settings.train.sync_every, count * mesh.size_over(&DATA));
        let (data, sampler): (Arc<D>, _) = (self.training.train.clone(), self.sampler.clone());
        let read = move |position: u64| -> anyhow::Result<Vec<Vec<D::Item>>> {
            // The micro-batches between two updates are numbered together.
            let steps = (position % every as u64) as usize;
            let first = position - steps as u64;
            let samples = |k: usize| {
                let number = zero.micro_batch_number(&mesh, rank, steps * count + k, every * count);
                let position = first + (number / in_a_step) as u64;
                let samples = sampler.global_micro_batch(position, number % in_a_step)?;
                samples.into_iter().map(|index| data.get(index)).collect()
            };
            (0..count).map(samples).collect()
        };
        Ok(Prefetcher::new(position, READ_AHEAD, 1, read)?)
    }
}
