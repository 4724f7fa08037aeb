//! Saving checkpoints between steps, and rolling back to one.

use std::time::Instant;

use brigade_checkpoint::TrainState;
use brigade_core::{Activation, StepReport};

use crate::checkpoint::{SaveOutcome, restore};
use crate::dataset::Dataset;
use crate::error::AgreedError;
use crate::run::Session;
use crate::settings::{OnFailedSave, OnNonFinite};

use super::steps::Run;

impl<D: Dataset, O: Activation> Run<'_, D, O> {
    /// Saves a checkpoint of the current step, once an earlier save has ended.
    pub(super) fn save(&mut self) -> anyhow::Result<()> {
        self.send_heartbeat("saving a checkpoint");
        let since = Instant::now();
        self.wait_for_save()?;
        let Session { plan, facts, .. } = self.session;
        let axes = plan.mesh.axes().iter().map(|axis| (axis.name, axis.size as u64));
        let mesh = axes.chain([("zero", u64::from(plan.engine.zero.stage))]);
        let state = TrainState {
            position: self.progress.position,
            mesh: mesh.map(|(name, value)| (name.to_owned(), value)).collect(),
            settings: self.description.clone(),
            facts: facts.clone(),
            counters: self.progress.counters(),
            units: Vec::new(),
        };
        self.saver.begin(self.progress.step, self.engine.snapshot()?, state, since)?;
        if !self.session.settings.checkpoint.asynchronous {
            self.wait_for_save()?;
        }
        Ok(())
    }

    /// Waits for the save under way, if any.
    pub(super) fn wait_for_save(&mut self) -> anyhow::Result<()> {
        let what = format!("step {}: waiting for a checkpoint to be written", self.progress.step);
        let outcome = self.saver.wait(|| self.session.heartbeat.send(&what))?;
        self.save_ended(outcome)
    }

    /// Records the outcome of a save, if one has ended.
    pub(super) fn save_ended(&mut self, outcome: Option<SaveOutcome>) -> anyhow::Result<()> {
        match outcome {
            None => {}
            Some(SaveOutcome::Saved { record, cleanup_error }) => {
                if let Some(why) = cleanup_error {
                    self.note(&format!(
                        "the checkpoint of step {} is saved, but older ones could not be removed: {why}",
                        record.step
                    ));
                }
                if self.reporter.is_some() {
                    self.saved.push(record);
                }
            }
            Some(SaveOutcome::Failed(why)) => {
                let text = format!("the checkpoint could not be saved: {why}");
                match self.session.settings.checkpoint.on_failure {
                    OnFailedSave::Stop => return Err(AgreedError(text).into()),
                    OnFailedSave::Continue => self.note(&text),
                }
            }
        }
        Ok(())
    }

    /// Handles a step that was skipped. Returns whether the run was rolled back to a checkpoint.
    pub(super) fn rolled_back(&mut self, report: &StepReport) -> anyhow::Result<bool> {
        let settings = &self.session.settings.train;
        let why = match report.targets {
            0 => "no valid target in the global batch",
            _ => "loss or gradient norm not finite",
        };
        let rolls_back = settings.on_nonfinite == OnNonFinite::Rollback && report.targets > 0;
        if report.targets > 0 {
            self.progress.nonfinite += 1;
            let (many, most) = (self.progress.nonfinite, settings.nonfinite_limit);
            if most > 0 && many > most {
                return Err(AgreedError(format!(
                    "step {}: {why}, {many} times in this run; train.nonfinite_limit = {most} allows no more",
                    report.step
                ))
                .into());
            }
        }
        if !rolls_back {
            self.note(&format!("step {}: {why}, step skipped", report.step));
            return Ok(false);
        }
        self.wait_for_save()?;
        self.send_heartbeat("rolling back to a checkpoint");
        let (session, storage) = (self.session, self.saver.storage());
        // A checkpoint that was saved because of an interruption is passed over, so that the run does what it would have done
        // without the interruption.
        let regular = |step: u64| session.settings.checkpoint.is_regular(step);
        let restored = restore(&mut self.engine, storage, session.group(), session.identity(), regular)?;
        let Some(restored) = restored else {
            return Err(AgreedError(format!(
                "step {}: {why}, and there is no checkpoint yet to roll back to",
                report.step
            ))
            .into());
        };
        // The position in the data is not restored: the data up to the bad batch are left behind.
        self.progress.step = restored.progress.step;
        self.saver.newest = Some(restored.progress.step);
        for what in &restored.damaged {
            self.note(&format!("passed over {what}"));
        }
        self.note(&format!(
            "step {}: {why}; rolled back to the checkpoint of step {}, continuing with the data after the bad batch",
            report.step, restored.progress.step
        ));
        if let Some(reporter) = &mut self.reporter {
            reporter.rewind(restored.progress.step)?;
        }
        Ok(true)
    }
}
