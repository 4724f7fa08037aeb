//! The end of a run.

use std::path::PathBuf;

use anyhow::Context;
use brigade_core::Activation;
use brigade_models::WeightsFormat;
use brigade_report::{LogFormat, RunEvent, Summary, json_line, log_format};

use super::Trainer;
use crate::checkpoint::{FIRST_MODEL, restore_step};
use crate::error::AgreedError;
use crate::folder::{WEIGHTS_FILE, added_weights_file};
use crate::run::Session;
use crate::train::Trained;
use crate::train::describe::print_stdout;
use crate::training_setup::WeightsFile;

impl<I: Activation + Clone, O: Activation, T: Clone + 'static> Trainer<'_, I, O, T> {
    /// Ends the run: waits for checkpoints that are being written, writes the weights into the run's folder, and prints the
    /// summary. If a loop ends before the run [is over](Self::is_over), a last checkpoint is saved first, if checkpoints are
    /// enabled and [can be saved](Self::save), and the run can be resumed from there.
    ///
    /// # Errors
    /// If weights or checkpoints cannot be written, or a rank failed.
    pub fn finish(mut self) -> anyhow::Result<Trained<I, O, T>> {
        self.proceed()?;
        self.end_profiled_run()?;
        self.reader = None;
        if let Some(worker) = self.elastic.take() {
            worker.finish();
        }
        if self.works_for.is_some() {
            // The servers have the parameters.
            let end = RunEvent::Finished { step: self.progress.step, ended_early: None };
            self.reporter.iter_mut().try_for_each(|reporter| reporter.event(end.clone()))?;
            self.finish_reports(&[])?;
            return Ok(Trained::new(self.engine, &self.progress, None, PathBuf::new()));
        }
        self.disconnect_workers()?;
        let step = self.update_step();
        let is_due = self.saver.is_due(step, true) && self.saved_step != Some(step);
        // Weights and last checkpoint may be on different disks: each is written even if the other fails.
        let begun = if step > 0 && is_due && self.open_update().is_none() { self.save() } else { Ok(()) };
        self.session.heartbeat.send("writing the weights");
        let written = self.write_all_weights();
        let saved = self.wait_for_save();
        let paths = written?;
        begun.and(saved)?;
        // The weights of the last step are written by now: no checkpoint that cannot be read costs a run its weights.
        if self.session.settings.checkpoint.load_best_at_end
            && let Some(best) = self.load_best()?
        {
            self.session.heartbeat.send("writing the best weights");
            self.write_all_weights().with_context(|| {
                format!(
                    "writing the weights of step {best}, the best; those of the last step had been written"
                )
            })?;
            self.note(&format!("the weights are those of step {best}, the best"));
        }
        let stopped = self.stopped();
        let end = RunEvent::Finished { step: self.progress.step, ended_early: stopped.clone() };
        self.reporter.iter_mut().try_for_each(|reporter| reporter.event(end.clone()))?;
        self.finish_reports(&paths)?;
        self.engine.keep_model_values()?;
        let weights = paths.into_iter().next().unwrap_or_default();
        Ok(Trained::new(self.engine, &self.progress, stopped, weights))
    }

    /// Writes the weights file of each model; returns their paths, the first model's first.
    fn write_all_weights(&self) -> anyhow::Result<Vec<PathBuf>> {
        let WeightsFile { name, holds } = self.training.weights;
        // `peft` reads one file.
        let is_model = name == WEIGHTS_FILE;
        let max_shard_size = self.session.settings.output.max_shard_size;
        let format = if is_model {
            WeightsFormat { max_shard_size, ..WeightsFormat::default() }
        } else {
            WeightsFormat::ONE_FILE
        };
        let (first, mapping) = (self.session.out.join(name), &self.training.mapping);
        let mut paths = vec![self.session.write_weights(&self.engine, mapping, &first, holds, format)?];
        for added in &self.added {
            let path = added_weights_file(&self.session.out.join(WEIGHTS_FILE), added.name());
            added.write_weights(self.session, &path)?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// Loads the best checkpoint's weights into all models. Returns its step if they differ from those of the last step: if they
    /// cannot be loaded, those of the last step stay.
    ///
    /// # Errors
    /// If a rank failed, or a part was loaded and the last checkpoint cannot be loaded either.
    fn load_best(&mut self) -> anyhow::Result<Option<u64>> {
        let Some(best) = self.progress.best_step else {
            self.note("no step was chosen as the best; the weights are those of the last step");
            return Ok(None);
        };
        let last = self.update_step();
        if best == last {
            return Ok(None);
        }
        self.session.heartbeat.send("loading the best checkpoint");
        let (loaded, is_changed) = self.load_step(best)?;
        let Err(why) = loaded else {
            return Ok(Some(best));
        };
        let text = format!("the weights of the best checkpoint, of step {best}, cannot be loaded: {why}");
        if is_changed && let (Err(why), _) = self.load_step(last)? {
            return Err(AgreedError(format!(
                "{text}; those of the last step are in {}, but its checkpoint cannot be loaded either: {why}",
                self.session.out.join(self.training.weights.name).display()
            ))
            .into());
        }
        self.note(&format!("{text}; the weights are those of the last step"));
        Ok(None)
    }

    /// Loads all models from a checkpoint. The inner error says why that failed, and whether a rank had begun to change its
    /// models.
    fn load_step(&mut self, step: u64) -> anyhow::Result<(Result<(), String>, bool)> {
        let (engine, added, group) = (&mut self.engine, &self.added, self.session.group());
        let mut began = 0.0f64;
        let loaded = restore_step(self.saver.storage(), group, step, |progress, reader| {
            began = 1.0;
            engine.restore(step, reader.of(FIRST_MODEL))?;
            added.iter().try_for_each(|added| added.restore(progress, reader))
        })?;
        let mut all = vec![0.0; group.size()];
        all[group.rank()] = began;
        group.all_gather_in_place(&mut all)?;
        Ok((loaded, all.contains(&1.0)))
    }

    /// Ends the reports, on rank 0, and prints the summary with these files.
    pub(super) fn finish_reports(&mut self, files: &[PathBuf]) -> anyhow::Result<()> {
        let ended = self
            .stopped()
            .map(|why| format!("after step {} of {}: {why}", self.progress.step, self.total_steps));
        let Some(mut reporter) = self.reporter.take() else { return Ok(()) };
        for record in &self.completed {
            reporter.checkpoint(record)?;
        }
        files.iter().for_each(|file| reporter.add_file(file));
        let summary = Summary { ended_early: ended, best_step: self.progress.best_step, ..reporter.finish() };
        self.session.print_summary(&summary);
        Ok(())
    }
}

impl Session {
    fn print_summary(&self, summary: &Summary) {
        if !self.quiet {
            let text = summary.to_string();
            let text = match log_format() {
                LogFormat::Text => text,
                LogFormat::Json => json_line(Some(self.rank()), &text),
            };
            print_stdout(&format!("{text}\n"));
        }
    }
}
