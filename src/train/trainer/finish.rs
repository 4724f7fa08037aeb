//! The end of a run.

use std::path::PathBuf;

use brigade_core::Activation;
use brigade_report::Summary;

use super::Trainer;
use crate::checkpoint::{FIRST_MODEL, restore_step};
use crate::error::AgreedError;
use crate::folder::{WEIGHTS_FILE, added_weights_file};
use crate::run::Session;
use crate::train::Trained;
use crate::train::describe::print_stdout;

impl<I: Activation + Clone, O: Activation, T: Clone> Trainer<'_, I, O, T> {
    /// Ends the run: waits for checkpoints that are being written, writes the weights into the run's folder, and prints the
    /// summary. Where a loop ends before the run [is over](Self::is_over), a last checkpoint is saved first, if checkpoints are
    /// saved at all, and the run can be resumed from there.
    ///
    /// # Errors
    /// If weights or checkpoints cannot be written, or a rank failed.
    pub fn finish(mut self) -> anyhow::Result<Trained<I, O, T>> {
        self.proceed()?;
        self.reader = None;
        let step = self.progress.step;
        let is_update = step.is_multiple_of(self.session.settings.train.sync_every as u64);
        if step > 0 && is_update && self.saver.is_due(step, true) && self.saved_step != Some(step) {
            self.save()?;
        }
        if self.session.settings.checkpoint.load_best_at_end {
            self.load_best()?;
        }
        self.session.heartbeat.send("writing the weights");
        let written = self.write_all_weights();
        // Weights and last checkpoint may be on different disks: each is written even if the other fails.
        let saved = self.wait_for_save();
        let paths = written?;
        saved?;
        self.finish_reports(&paths)?;
        let stopped = self.stopped();
        let weights = paths.into_iter().next().unwrap_or_default();
        Ok(Trained::new(self.engine, &self.progress, stopped, weights))
    }

    /// Writes the file of weights of each model; gives their paths, that of the first model first.
    fn write_all_weights(&self) -> anyhow::Result<Vec<PathBuf>> {
        let out = &self.session.out;
        let path = out.join(WEIGHTS_FILE);
        self.write_weights(&path)?;
        let mut paths = vec![path];
        for added in &self.added {
            let path = out.join(added_weights_file(added.name()));
            added.write_weights(self.session, &path)?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// Takes the weights of the best checkpoint, of all models.
    fn load_best(&mut self) -> anyhow::Result<()> {
        self.wait_for_save()?;
        let Some(best) = self.progress.best_step else {
            self.note("no step was the best; the weights are those of the last step");
            return Ok(());
        };
        if best == self.progress.step {
            return Ok(());
        }
        self.session.heartbeat.send("loading the best checkpoint");
        let (engine, added) = (&mut self.engine, &self.added);
        let restored = restore_step(self.saver.storage(), self.session.group(), best, |progress, reader| {
            engine.restore(best, reader.of(FIRST_MODEL))?;
            added.iter().try_for_each(|added| added.restore(progress, reader))
        })?;
        if let Err(why) = restored {
            let text =
                format!("the weights of the best checkpoint, that of step {best}, cannot be loaded: {why}");
            return Err(AgreedError(text).into());
        }
        self.note(&format!("the weights are those of step {best}, the best"));
        Ok(())
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
            print_stdout(&format!("{summary}\n"));
        }
    }
}
