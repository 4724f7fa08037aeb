//! The training loop of one rank.

mod describe;
mod devices;
mod finish;
mod start;
mod step_stats;
mod steps;
#[cfg(test)]
mod tests;
mod validate;
mod weights;

use brigade_core::{Activation, Chain, Engine, EngineSettings, Model};

use crate::dataset::{Dataset, Training};
use crate::run::Session;
use steps::Run;

/// A finished run.
pub struct Trained<I, O> {
    /// The model with its trained weights. Where pipeline stages or ZeRO-3 leave each rank with a part of it, asking it
    /// for values or predictions is an error; the run's file of weights is whole always.
    pub model: Chain<I, O>,
    /// Mean loss over the last global batch; NaN where the run had ended before it was resumed.
    pub loss: f64,
    /// Mean loss over the validation samples, where there are any.
    pub validation_loss: Option<f64>,
}

impl Session {
    /// Trains a model on this rank together with all others, from the start or a checkpoint to the end of the run. Rank 0
    /// writes metrics and weights into the run's folder and shows progress.
    ///
    /// # Errors
    /// Whatever ends a run early: data that cannot be read, a loss that is not finite, a rank that
    /// failed, a full disk, an interruption.
    pub fn train<D, O>(
        &mut self,
        model: Model<D::Input, O, D::Target>,
        training: Training<D>,
    ) -> anyhow::Result<Trained<D::Input, O>>
    where
        D: Dataset,
        O: Activation,
    {
        self.describe(model.chain())?;
        self.prepares();
        let split = self.plan.split(&model.chain().costs())?;
        let sizes = format!(
            "{} samples to train on, {} to validate on",
            training.train.len(),
            training.validation.as_ref().map_or(0, |v| v.len())
        );
        self.same("dataset", &sizes)?;
        let sampler = self.sampler(&training)?;
        let shapes = model.chain().shapes();
        let mut introduction = self.introduction(model.chain(), &training, &sampler);
        let optimizer = self.settings.optimizer.factory()?;
        let engine_settings = EngineSettings { split, ..self.plan.engine.clone() };
        self.heartbeat.send("making the model");
        let mut engine = Engine::new(model, self.seed(), &optimizer, self.groups(), engine_settings)?;
        let mut saver = self.saver()?;
        introduction.extend(self.obstacle(&saver)?);
        let description = self.run_description(&shapes, &training.names)?;
        let resumption = self.restored(&mut engine, &mut saver)?;
        let reporter = self.begin(&saver, &training, resumption.as_ref(), &introduction)?;
        let point = resumption.map(|resumption| resumption.point).unwrap_or_default();
        Run {
            description,
            session: self,
            engine,
            saver,
            reporter,
            training,
            sampler,
            point,
            loss: f64::NAN,
            validation_loss: None,
            saved: Vec::new(),
            device_peak: 0,
        }
        .finished()
    }
}
