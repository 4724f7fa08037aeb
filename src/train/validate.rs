//! Validation between steps.

use brigade_core::{Activation, DATA, Engine, Evaluation};
use brigade_data::ValidationSampler;

use crate::run::Session;
use crate::training::MicroBatchSource;

impl Session {
    /// Loss and metrics over the validation samples, each read by the ranks of one pipeline. One micro-batch at a time is on
    /// a rank's device, and ranks that need neither inputs nor targets read none.
    pub(super) fn validate<I, O, T>(
        &self,
        engine: &mut Engine<I, O, T>,
        data: &dyn MicroBatchSource<I, T>,
    ) -> anyhow::Result<Evaluation>
    where
        I: Activation + Clone,
        O: Activation,
        T: Clone,
    {
        let settings = &self.settings.train;
        let samples = match settings.validation_samples {
            0 => data.samples(),
            most => most.min(data.samples()),
        };
        let (dp_rank, dp) = (self.plan.mesh.position(self.rank(), &DATA), self.plan.mesh.size_over(&DATA));
        let sampler = ValidationSampler::new(samples, settings.micro_batch_size, dp)?;
        let device = self.device();
        let micro_batches: Vec<_> = sampler.for_rank(dp_rank)?.flatten().collect();
        Ok(engine.evaluate(micro_batches.len(), |index| {
            self.heartbeat.send(&format!("validating, micro-batch {index}"));
            Ok(data.read(micro_batches[index].clone(), &device)?)
        })?)
    }
}
