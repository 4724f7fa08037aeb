//! The loop: step after step, with what comes between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_checkpoint::TrainState;
use brigade_core::{Activation, Engine, StepReport};
use brigade_data::{Prefetcher, Sampler};
use brigade_report::{CheckpointRecord, DeviceMemory, Reporter};

use crate::checkpoint::{Outcome, Point, Saver, restore};
use crate::dataset::{Dataset, Training};
use crate::error::{Agreed, Preempted};
use crate::run::Session;
use crate::settings::{OnFailedSave, OnNonFinite};

use super::Trained;
use super::step_stats::{News, Shares, record, share};

/// Steps that are read ahead of the one that trains.
pub(super) const READ_AHEAD: usize = 4;

/// A run under way on one rank.
pub(super) struct Run<'a, D: Dataset, O> {
    pub session: &'a Session,
    pub engine: Engine<D::Input, O, D::Target>,
    pub saver: Saver,
    /// On rank 0.
    pub reporter: Option<Reporter>,
    pub training: Training<D>,
    pub sampler: Sampler,
    pub point: Point,
    /// What checkpoints say of the run.
    pub description: serde_json::Value,
    pub loss: f64,
    pub validation_loss: Option<f64>,
    /// Checkpoints that became whole since the last record.
    pub saved: Vec<CheckpointRecord>,
    /// The most bytes of this rank's device that were in use so far.
    pub device_peak: u64,
}

/// This rank's micro-batches of samples, step by step.
type Reader<D> = Prefetcher<Vec<Vec<<D as Dataset>::Item>>>;

impl<D: Dataset, O: Activation> Run<'_, D, O> {
    pub(super) fn finished(mut self) -> anyhow::Result<Trained<D::Input, O>> {
        let mut reader = self.read_from(self.point.position)?;
        self.session.begins();
        while self.point.step < self.session.settings.train.steps {
            self.session.check_interrupt()?;
            let started = Instant::now();
            self.send_heartbeat("waiting for data");
            let (items, data_wait) = reader.next().context("reading data")?;
            self.send_heartbeat("training");
            let (report, learning_rate) = self.step(items)?;
            let shares = self.share(&report, data_wait, started.elapsed())?;
            // All ranks have computed a step.
            self.session.group().warmed_up();
            let outcome = self.saver.advance(&shares.saving)?;
            self.conclude(outcome)?;
            self.point.position += 1;
            if report.skipped && self.is_gone_back(&report)? {
                reader = self.read_from(self.point.position)?;
                continue;
            }
            self.point.step += 1;
            self.loss = report.loss;
            let last = self.point.step == self.session.settings.train.steps;
            let validated = self.validated(last)?;
            // The step's record is there before a checkpoint from which the run goes on after it.
            if let Some(reporter) = &mut self.reporter {
                let checkpoint = (!self.saved.is_empty()).then(|| self.saved.remove(0));
                reporter.step(&record(&report, learning_rate, &shares, validated, checkpoint))?;
            }
            if self.saver.is_due(self.point.step, last) {
                self.save()?;
            }
            if shares.preempted && !last {
                return self.leave();
            }
        }
        drop(reader);
        self.finish()
    }

    fn send_heartbeat(&self, what: &str) {
        self.session.heartbeat.send(&format!("step {}: {what}", self.point.step + 1));
    }

    fn step(&mut self, items: Vec<Vec<D::Item>>) -> anyhow::Result<(StepReport, f64)> {
        let device = self.session.device();
        let batches = items.into_iter().map(|items| self.training.train.batch(items, &device)).collect();
        let plan = &self.session.plan;
        let learning_rate = plan.learning_rate * plan.schedule.factor(self.point.step);
        Ok((self.engine.step(batches, learning_rate)?, learning_rate))
    }

    fn share(&mut self, report: &StepReport, data_wait: Duration, step: Duration) -> anyhow::Result<Shares> {
        let news = News { saving: self.saver.progress(), preempted: self.session.is_preempted() };
        let device = self.session.device_memory().map(|memory| {
            self.device_peak = self.device_peak.max(memory.reserved);
            DeviceMemory { reserved_peak: self.device_peak, ..memory }
        });
        share(self.session.collectives().as_ref(), report, data_wait, step, device, news)
    }

    /// What to do about a step that was skipped: nothing, or going back to a checkpoint, which is the answer.
    fn is_gone_back(&mut self, report: &StepReport) -> anyhow::Result<bool> {
        let settings = &self.session.settings.train;
        let why = match report.targets {
            0 => "no valid target in the global batch",
            _ => "loss or gradient norm not finite",
        };
        let goes_back = settings.on_nonfinite == OnNonFinite::Rollback && report.targets > 0;
        if report.targets > 0 {
            self.point.nonfinite += 1;
            let (many, most) = (self.point.nonfinite, settings.nonfinite_limit);
            if most > 0 && many > most {
                return Err(Agreed(format!(
                    "step {}: {why}, {many} times in this run by now; train.nonfinite_limit = {most} allows no more",
                    report.step
                ))
                .into());
            }
        }
        if !goes_back {
            self.note(&format!("step {}: {why}, step skipped", report.step));
            return Ok(false);
        }
        self.settle()?;
        self.send_heartbeat("going back to a checkpoint");
        let (session, storage) = (self.session, self.saver.storage());
        // A checkpoint that an interruption left is passed over, so that the run goes as it would have gone without.
        let regular = |step: u64| session.settings.checkpoint.is_regular(step);
        let back = restore(&mut self.engine, storage, session.group(), session.identity(), regular)?;
        let Some(back) = back else {
            return Err(Agreed(format!(
                "step {}: {why}, and there is no checkpoint yet to go back to",
                report.step
            ))
            .into());
        };
        // Data are not read again: those up to the bad batch are left behind.
        self.point.step = back.point.step;
        self.saver.newest = Some(back.point.step);
        for what in &back.damaged {
            self.note(&format!("passed over {what}"));
        }
        self.note(&format!(
            "step {}: {why}; back to the checkpoint of step {}, and on with the data after the bad batch",
            report.step, back.point.step
        ));
        if let Some(reporter) = &mut self.reporter {
            reporter.rewind(back.point.step)?;
        }
        Ok(true)
    }

    fn validated(&mut self, last: bool) -> anyhow::Result<Option<f64>> {
        let every = self.session.settings.train.validate_every;
        let due = last || (every > 0 && self.point.step.is_multiple_of(every));
        let Some(data) = self.training.validation.clone().filter(|_| due) else { return Ok(None) };
        self.send_heartbeat("validating");
        let loss = self.session.validate(&mut self.engine, &data)?;
        self.validation_loss = Some(loss);
        Ok(Some(loss))
    }

    /// Saves a checkpoint of where the run is, after an earlier one that is still being written.
    fn save(&mut self) -> anyhow::Result<()> {
        self.send_heartbeat("saving a checkpoint");
        let since = Instant::now();
        self.settle()?;
        let Session { plan, facts, .. } = self.session;
        let mesh = [
            ("pp", plan.mesh.pp as u64),
            ("dp", plan.mesh.dp as u64),
            ("zero", u64::from(plan.engine.zero.stage)),
        ];
        let state = TrainState {
            position: self.point.position,
            mesh: BTreeMap::from(mesh.map(|(name, value)| (name.to_owned(), value))),
            settings: self.description.clone(),
            facts: facts.clone(),
            counters: self.point.counters(),
            units: Vec::new(),
        };
        self.saver.begin(self.point.step, self.engine.snapshot()?, state, since)?;
        if !self.session.settings.checkpoint.asynchronous {
            self.settle()?;
        }
        Ok(())
    }

    /// Waits until the save that is under way, if any, has ended.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        let word = format!("step {}: waiting for a checkpoint to be written", self.point.step);
        let outcome = self.saver.settle(|| self.session.heartbeat.send(&word))?;
        self.conclude(outcome)
    }

    /// Takes note of how a save ended.
    fn conclude(&mut self, outcome: Option<Outcome>) -> anyhow::Result<()> {
        match outcome {
            None => {}
            Some(Outcome::Saved { record, untidy }) => {
                if let Some(why) = untidy {
                    self.note(&format!(
                        "the checkpoint of step {} is saved, but older ones stay: {why}",
                        record.step
                    ));
                }
                if self.reporter.is_some() {
                    self.saved.push(record);
                }
            }
            Some(Outcome::Failed(why)) => {
                let text = format!("the checkpoint could not be saved: {why}");
                match self.session.settings.checkpoint.on_failure {
                    OnFailedSave::Stop => return Err(Agreed(text).into()),
                    OnFailedSave::Continue => self.note(&text),
                }
            }
        }
        Ok(())
    }

    /// Saves and ends, because the machine is about to be taken away.
    fn leave(mut self) -> anyhow::Result<Trained<D::Input, O>> {
        // Whether an earlier save fails or not, this one is tried.
        match self.saver.settle(|| {})? {
            Some(Outcome::Failed(why)) => {
                self.note(&format!("the checkpoint before could not be saved: {why}"))
            }
            outcome => self.conclude(outcome)?,
        }
        if self.saver.newest != Some(self.point.step) {
            self.save()?;
        }
        self.settle()?;
        if self.saver.newest != Some(self.point.step) {
            let why = "the run was to leave its machine, and could not save a checkpoint before";
            return Err(Agreed(why.into()).into());
        }
        let step = self.point.step;
        self.note(&format!("leaving after step {step}, saved; --resume goes on from there"));
        if let Some(mut reporter) = self.reporter {
            for record in &self.saved {
                reporter.checkpoint(record)?;
            }
            self.session.summarize(reporter.finish());
        }
        Err(Preempted.into())
    }

    pub(super) fn note(&mut self, text: &str) {
        if let Some(reporter) = &mut self.reporter {
            reporter.note(text);
        }
    }

    /// Reads this rank's micro-batches of samples from a position on, on a thread of its own.
    fn read_from(&self, position: u64) -> anyhow::Result<Reader<D>> {
        let plan = &self.session.plan;
        let (zero, count) = (plan.engine.zero, plan.accumulation);
        let (dp_rank, dp) = (plan.mesh.dp_rank(self.session.rank()), plan.mesh.dp);
        let numbers: Vec<usize> =
            (0..count).map(|k| zero.micro_batch_number(dp_rank, dp, k, count)).collect();
        let (data, sampler): (Arc<D>, _) = (self.training.train.clone(), self.sampler.clone());
        let read = move |position: u64| -> anyhow::Result<Vec<Vec<D::Item>>> {
            let samples = |number: &usize| {
                sampler.numbered(position, *number)?.into_iter().map(|index| data.get(index)).collect()
            };
            numbers.iter().map(samples).collect()
        };
        Ok(Prefetcher::new(position, READ_AHEAD, 1, read)?)
    }
}
