//! The training loop of one rank.

mod describe;
mod devices;
mod finish;
mod saving;
mod start;
mod step_stats;
mod steps;
#[cfg(test)]
mod tests;
mod trained;
mod validate;
mod weights;

use brigade_core::{Activation, Engine, EngineSettings, Model};

use crate::dataset::Dataset;
use crate::run::Session;
use crate::training::Training;
use steps::Run;

pub use trained::Trained;

impl Session {
    /// Trains a model on all ranks together, from scratch or from a checkpoint to the end of the run. Rank 0 writes metrics and
    /// weights into the run's folder and shows progress.
    ///
    /// # Errors
    /// Whatever ends a run early: data that cannot be read, a loss that is not finite, a failed rank, a full disk, an
    /// interruption.
    pub fn train<D, O>(
        &mut self,
        model: Model<D::Input, O, D::Target>,
        mut training: Training<D, O>,
    ) -> anyhow::Result<Trained<D::Input, O, D::Target>>
    where
        D: Dataset,
        O: Activation,
    {
        self.stop_if_dry_run(model.chain())?;
        self.mark_preparing();
        let split = self.plan.split(&model.chain().costs())?;
        let sizes = format!(
            "{} samples to train on, {} to validate on",
            training.train.len(),
            training.validation.as_ref().map_or(0, |v| v.samples())
        );
        self.check_same("dataset", &sizes)?;
        let sampler = self.sampler(&*training.train)?;
        let mut summary = self.run_summary(model.chain(), &training, &sampler);
        let optimizer = self.settings.optimizer.factory()?;
        let engine_settings = EngineSettings { split, ..self.plan.engine.clone() };
        self.heartbeat.send("making the model");
        let model = training.add_metrics_to(model);
        let mut engine = Engine::new(model, self.seed(), &optimizer, self.groups(), engine_settings)?;
        let mut saver = self.saver()?;
        summary.extend(self.check_storage(&saver)?);
        let description = self.run_description(&engine.shapes(), &training.mapping)?;
        let restored = self.restore(&mut engine, &mut saver)?;
        let reporter = self.begin(&saver, &training, restored.as_ref(), &summary)?;
        let progress = restored.map(|restored| restored.progress).unwrap_or_default();
        Run {
            description,
            session: self,
            engine,
            saver,
            reporter,
            training,
            sampler,
            progress,
            loss: f64::NAN,
            validation_loss: None,
            saved: Vec::new(),
            device_peak: 0,
        }
        .train()
    }
}
