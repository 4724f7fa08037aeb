//! Validation between steps.

use std::sync::Arc;

use brigade_core::{Activation, Engine};
use brigade_data::ValidationSampler;

use crate::dataset::Dataset;
use crate::run::Session;

impl Session {
    /// Mean loss over the validation samples, each read by the ranks of one pipeline.
    pub(super) fn validate<D, O>(
        &self,
        engine: &mut Engine<D::Input, O, D::Target>,
        data: &Arc<D>,
    ) -> anyhow::Result<f64>
    where
        D: Dataset,
        O: Activation,
    {
        let settings = &self.settings.train;
        let samples = match settings.validation_samples {
            0 => data.len(),
            most => most.min(data.len()),
        };
        let (dp_rank, dp) = (self.plan.mesh.dp_rank(self.rank()), self.plan.mesh.dp);
        let sampler = ValidationSampler::new(samples, settings.micro_batch_size, dp)?;
        let device = self.device();
        let mut batches = Vec::new();
        for samples in sampler.for_rank(dp_rank)?.flatten() {
            batches.push(samples.map(|index| data.get(index)).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(engine.evaluate(batches.into_iter().enumerate().map(|(index, items)| {
            self.heartbeat.send(&format!("validating, micro-batch {index}"));
            data.batch(items, &device)
        }))?)
    }
}
