//! The end of a run.

use brigade_core::Activation;
use brigade_report::Summary;

use crate::dataset::Dataset;
use crate::run::Session;

use super::Trained;
use super::describe::say;
use super::steps::Run;

impl<D: Dataset, O: Activation> Run<'_, D, O> {
    pub(super) fn finish(mut self) -> anyhow::Result<Trained<D::Input, O>> {
        self.session.heartbeat.send("writing the weights");
        let written = self.session.write_weights(&self.engine, &self.training.names);
        // Neither waits for the other to succeed: weights and last checkpoint may lie on different disks.
        let settled = self.settle();
        let path = written?;
        settled?;
        if let Some(mut reporter) = self.reporter {
            for record in &self.saved {
                reporter.checkpoint(record)?;
            }
            reporter.wrote(path);
            self.session.summarize(reporter.finish());
        }
        let Self { engine, loss, validation_loss, .. } = self;
        Ok(Trained { model: engine.into_chain(), loss, validation_loss })
    }
}

impl Session {
    pub(super) fn summarize(&self, summary: Summary) {
        if !self.quiet {
            say(&format!("{summary}\n"));
        }
    }
}
