//! The end of a run.

use brigade_core::Activation;
use brigade_report::Summary;

use crate::checkpoint::SaveOutcome;
use crate::dataset::Dataset;
use crate::error::{AgreedError, Preempted};
use crate::run::Session;

use super::Trained;
use super::describe::print_stdout;
use super::steps::Run;

impl<D: Dataset, O: Activation> Run<'_, D, O> {
    /// Writes the weights and the summary after the last step.
    pub(super) fn finish(mut self) -> anyhow::Result<Trained<D::Input, O, D::Target>> {
        self.session.heartbeat.send("writing the weights");
        let written = self.session.write_weights(&self.engine, &self.training.mapping);
        // Weights and last checkpoint may be on different disks: each is written even if the other fails.
        let saved = self.wait_for_save();
        let path = written?;
        saved?;
        if let Some(mut reporter) = self.reporter {
            for record in &self.saved {
                reporter.checkpoint(record)?;
            }
            reporter.add_file(path.clone());
            self.session.print_summary(reporter.finish());
        }
        let Self { engine, loss, validation_loss, .. } = self;
        Ok(Trained::new(engine, loss, validation_loss, path))
    }

    /// Saves and ends, because the machine is about to be taken away.
    pub(super) fn exit_preempted(mut self) -> anyhow::Result<Trained<D::Input, O, D::Target>> {
        // Even if an earlier save fails, this one is tried.
        match self.saver.wait(|| {})? {
            Some(SaveOutcome::Failed(why)) => {
                self.note(&format!("the previous checkpoint could not be saved: {why}"))
            }
            outcome => self.save_ended(outcome)?,
        }
        if self.saver.newest != Some(self.progress.step) {
            self.save()?;
        }
        self.wait_for_save()?;
        if self.saver.newest != Some(self.progress.step) {
            let why = "the run was preempted and could not save a checkpoint";
            return Err(AgreedError(why.into()).into());
        }
        let step = self.progress.step;
        self.note(&format!("preempted after step {step}, which is saved; --resume continues from there"));
        if let Some(mut reporter) = self.reporter {
            for record in &self.saved {
                reporter.checkpoint(record)?;
            }
            self.session.print_summary(reporter.finish());
        }
        Err(Preempted.into())
    }
}

impl Session {
    fn print_summary(&self, summary: Summary) {
        if !self.quiet {
            print_stdout(&format!("{summary}\n"));
        }
    }
}
