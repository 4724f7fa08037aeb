//! Validation between steps.

use std::sync::Arc;

use brigade_core::{Activation, DATA, Engine, Evaluation};
use brigade_data::ValidationSampler;

use crate::dataset::Dataset;
use crate::run::Session;

impl Session {
    /// Loss and metrics over the validation samples, each read by the ranks of one pipeline. One micro-batch at a time is on
    /// a rank's device, and ranks that need neither inputs nor targets read none.
    pub(super) fn validate<D, O>(
        &self,
        engine: &mut Engine<D::Input, O, D::Target>,
        data: &Arc<D>,
    ) -> anyhow::Result<Evaluation>
    where
        D: Dataset,
        O: Activation,
    {
        let settings = &self.settings.train;
        let samples = match settings.validation_samples {
            0 => data.len(),
            most => most.min(data.len()),
        };
        let (dp_rank, dp) = (self.plan.mesh.position(self.rank(), &DATA), self.plan.mesh.size_over(&DATA));
        let sampler = ValidationSampler::new(samples, settings.micro_batch_size, dp)?;
        let device = self.device();
        let micro_batches: Vec<_> = sampler.for_rank(dp_rank)?.flatten().collect();
        Ok(engine.evaluate(micro_batches.len(), |index| {
            self.heartbeat.send(&format!("validating, micro-batch {index}"));
            let items = micro_batches[index].clone().map(|sample| data.get(sample));
            Ok(data.batch(items.collect::<Result<Vec<_>, _>>()?, &device))
        })?)
    }
}
