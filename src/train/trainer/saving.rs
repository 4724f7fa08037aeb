//! Saving checkpoints between steps, and rolling back to one.

use std::time::Instant;

use anyhow::bail;
use brigade_checkpoint::TrainState;
use brigade_core::{Activation, StepReport};
use brigade_report::RunEvent;
use brigade_report::timeline::Track;

use super::Trainer;
use super::step::nonfinite::{reason, skipped_note, steps_of};
use crate::checkpoint::{FIRST_MODEL, ModelSnapshot, RunProgress, SaveOutcome, restore};
use crate::error::AgreedError;
use crate::run::Session;
use crate::settings::{OnFailedSave, OnNonFinite};

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Whether a checkpoint is to be saved now: as `checkpoint.every` says, at the end of the run, and where the weights are the
    /// best so far.
    pub fn save_is_due(&self) -> bool {
        let step = self.progress.step;
        let is_due = self.saver.is_due(step, self.is_over()) && self.saved_step != Some(step);
        (is_due || self.best_is_unsaved) && self.works_for.is_none() && self.open_update().is_none()
    }

    /// Why no checkpoint can be saved now, if so: of several models, each must have made an update in its last step.
    pub(super) fn open_update(&self) -> Option<String> {
        let (every, setting) = self.session.settings.steps_together();
        let since = match self.added.iter().find(|added| !added.steps().is_multiple_of(every)) {
            _ if self.added.is_empty() => return None,
            _ if self.is_between_updates() => format!(
                "step {} makes no update, so no checkpoint can be saved after it: additional models may have changed since step {}",
                self.progress.step,
                self.update_step()
            ),
            Some(added) => format!(
                "step {} of the model `{}` makes no update, so no checkpoint can be saved after it",
                added.steps(),
                added.name()
            ),
            None => return None,
        };
        Some(format!("{since}; do so after a multiple of {setting} = {every} of its steps"))
    }

    /// Whether the loop goes on without the checkpoint that was [due](Self::save_is_due).
    fn is_left_unsaved(&self) -> bool {
        let is_new = self.saved_step.unwrap_or(0) < self.update_step();
        is_new && !self.is_over() && self.save_is_due()
    }

    /// Saves the checkpoint that was due, if the loop has not.
    pub(super) fn save_what_is_due(&mut self) -> anyhow::Result<()> {
        if self.is_left_unsaved() { self.save() } else { Ok(()) }
    }

    /// Notes once that the checkpoint that was due is not saved. The loop has made the batches of the next step already: they
    /// would not be the same ones in a run that resumes from it.
    pub(super) fn note_what_is_due(&mut self) {
        if self.is_left_unsaved() && !std::mem::replace(&mut self.has_noted_unsaved, true) {
            self.note(&format!(
                "step {} is not saved, though checkpoint.every = {}: a loop that makes its own batches calls `Trainer::save` when \
                 `Trainer::save_is_due`",
                self.progress.step, self.session.settings.checkpoint.every
            ));
        }
    }

    /// Saves a checkpoint of the current step, of this model and of those that were [added](Self::add_model). With
    /// `checkpoint.asynchronous` it is written while training continues. All ranks call it. Between two updates (`train.sync_every`) it is
    /// a checkpoint of the last update, and a run that resumes from it repeats the steps since.
    ///
    /// # Errors
    /// If the checkpoint, or an earlier one, cannot be saved and `checkpoint.on_failure` is `stop`, or a rank failed. If there are additional models and one of
    /// all models is between two updates: their steps since the last update are unknown.
    pub fn save(&mut self) -> anyhow::Result<()> {
        let step = self.update_step();
        if let Some(why) = self.open_update() {
            bail!("{why}");
        }
        // The step is recorded before a checkpoint is saved from which the run would continue after it.
        self.report_step()?;
        self.send_heartbeat("saving a checkpoint");
        let since = Instant::now();
        self.wait_for_save()?;
        let Session { plan, .. } = self.session;
        let axes = plan.mesh.axes().iter().map(|axis| (axis.name, axis.size as u64));
        let mesh = axes.chain([("zero", u64::from(plan.engine.zero.stage))]);
        for added in &self.added {
            self.progress.added.insert(added.name().to_owned(), added.steps());
        }
        self.progress.nonfinite = self.nonfinite.count();
        // What additional models have done with the batches that were read is unknown.
        let is_untrained = self.is_read && self.added.is_empty();
        let state = TrainState {
            position: if self.is_between_updates() || is_untrained {
                self.update_position
            } else {
                self.progress.position
            },
            mesh: mesh.map(|(name, value)| (name.to_owned(), value)).collect(),
            settings: serde_json::to_value(&self.description)?,
            facts: self.facts.clone(),
            counters: self.progress.counters(),
            units: Vec::new(),
        };
        let mut snapshots =
            vec![ModelSnapshot { model: FIRST_MODEL.into(), snapshot: self.engine.snapshot_of_update()? }];
        for added in &self.added {
            let (model, snapshot) = (added.name().to_owned(), added.snapshot()?);
            snapshots.push(ModelSnapshot { model, snapshot });
        }
        self.saver.begin(step, snapshots, state, since)?;
        if let Some(profile) = &mut self.profile {
            profile.add(Track::Schedule, "snapshot for a checkpoint", since, Instant::now());
        }
        self.saved_step = Some(step);
        (self.best_is_unsaved, self.best_being_saved) = (false, self.best());
        if !self.session.settings.checkpoint.asynchronous {
            self.wait_for_save()?;
            if let Some(saved) = self.completed.last_mut().filter(|saved| saved.step == step) {
                saved.stall_seconds = since.elapsed().as_secs_f64();
            }
        }
        self.loop_seed.after_save(step);
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
                self.best_saved = self.best_being_saved;
                if let Some(why) = cleanup_error {
                    self.note(&format!(
                        "the checkpoint of step {} is saved, but older ones could not be removed: {why}",
                        record.step
                    ));
                }
                if self.reporter.is_some() {
                    self.completed.push(record);
                }
            }
            Some(SaveOutcome::Failed(why)) => {
                self.forget_unsaved_best();
                let text = format!("the checkpoint could not be saved: {why}");
                match self.session.settings.checkpoint.on_failure {
                    OnFailedSave::Stop => return Err(AgreedError(text).into()),
                    OnFailedSave::Continue => self.note(&text),
                }
            }
        }
        Ok(())
    }

    /// Saves, because the machine is about to be taken away, and ends the reports.
    pub(super) fn save_preempted(&mut self) -> anyhow::Result<()> {
        // Even if an earlier save fails, this one is tried.
        match self.saver.wait(|| {})? {
            Some(SaveOutcome::Failed(why)) => {
                self.forget_unsaved_best();
                self.note(&format!("the previous checkpoint could not be saved: {why}"));
            }
            outcome => self.save_ended(outcome)?,
        }
        let step = self.progress.step;
        if self.saver.newest != Some(step) {
            self.save()?;
        }
        self.wait_for_save()?;
        if self.saver.newest != Some(step) {
            let why = "the run was preempted and could not save a checkpoint";
            return Err(AgreedError(why.into()).into());
        }
        self.report_preempted(&format!(
            "preempted after step {step}, which is saved; --resume auto continues from there"
        ))
    }

    /// In words, from which step a run continues that ends now, without another checkpoint.
    pub(super) fn continues_from(&self) -> String {
        match self.saver.newest {
            Some(step) => format!("--resume auto continues from step {step}"),
            None => "no step is saved".to_owned(),
        }
    }

    /// Ends the reports with what becomes of a run that was preempted.
    pub(super) fn report_preempted(&mut self, what: &str) -> anyhow::Result<()> {
        self.note(what);
        self.reporter.iter_mut().try_for_each(|reporter| reporter.event(RunEvent::Preempted))?;
        self.finish_reports(&[])
    }

    /// Whether this skipped step is to be rolled back.
    pub(super) fn rolls_back(&self, report: &StepReport) -> bool {
        self.session.settings.train.on_nonfinite == OnNonFinite::Rollback && report.is_nonfinite()
    }

    /// Counts and names a step that was skipped, up to the limit.
    pub(super) fn count_skipped(&mut self, report: &StepReport) -> anyhow::Result<()> {
        let what = steps_of(report);
        self.nonfinite.add(&what, report)?;
        if let Some(text) = skipped_note(&what, report).filter(|_| !self.rolls_back(report)) {
            self.note(&text);
        }
        Ok(())
    }

    /// Rolls back to a checkpoint, and continues with the data after the bad batch.
    pub(super) fn roll_back(&mut self, report: &StepReport) -> anyhow::Result<()> {
        let why = reason(report);
        self.wait_for_save()?;
        self.send_heartbeat("rolling back to a checkpoint");
        let session = self.session;
        // A checkpoint that was saved because of an interruption is skipped, so that the run does what it would have done
        // without the interruption.
        let best = self.progress.best_step;
        let regular = |step: u64| session.settings.checkpoint.is_regular(step) || Some(step) == best;
        let (engine, added) = (&mut self.engine, &self.added);
        let identity = (session.run.as_str(), &self.facts);
        let restored =
            restore(self.saver.storage(), session.group(), identity, regular, |progress, reader| {
                engine.restore(progress.step, reader.of(FIRST_MODEL))?;
                added.iter().try_for_each(|added| added.restore(progress, reader))
            })?;
        let Some(restored) = restored else {
            return Err(AgreedError(format!(
                "step {}: {why}, and there is no checkpoint yet to roll back to",
                report.step
            ))
            .into());
        };
        self.logged.clear();
        let step = restored.progress.step;
        // The position in the data is not restored: the data up to the bad batch are left behind. Nor is the number of bad batches.
        self.progress = RunProgress { position: self.progress.position, ..restored.progress };
        self.update_position = self.progress.position;
        self.best_saved = self.best();
        self.reader = None;
        self.reported = None;
        self.saver.restart_from(step);
        self.saved_step = Some(step);
        self.is_unvalidated = false;
        for what in &restored.damaged {
            self.note(&format!("skipped {what}"));
        }
        self.note(&format!(
            "step {}: {why}; rolled back to the checkpoint of step {step}, continuing with the data after the bad batch",
            report.step
        ));
        if let Some(reporter) = &mut self.reporter {
            reporter.rewind(step)?;
        }
        Ok(())
    }
}
