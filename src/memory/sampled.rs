//! A model with samples, to measure it with.

use anyhow::Context;
use brigade_core::{Activation, Batch, Blocks, Dtype, HeapMeter, MeasuredActivations, Model, Recompute};

use crate::run::catch_panic;

/// Gives a micro-batch of this many samples.
pub(crate) type Samples<'a, I, T> = &'a dyn Fn(usize) -> anyhow::Result<Batch<I, T>>;

/// A model, and samples of the kind that it takes.
pub(crate) struct Sampled<'a, I, O, T> {
    pub model: &'a Model<I, O, T>,
    pub samples: Samples<'a, I, T>,
}

/// What is measured of a model, whatever its types are.
pub(crate) trait Measurable {
    /// Its blocks.
    fn blocks(&self) -> &Blocks;

    /// As [`Model::is_soon_measured`].
    fn is_soon_measured(&self) -> bool;

    /// As [`Model::measure_activations`], for a micro-batch of this size; a panic is an error.
    fn activations(
        &self,
        size: usize,
        compute: Dtype,
        splits: bool,
        meter: Option<&dyn HeapMeter>,
    ) -> anyhow::Result<MeasuredActivations>;

    /// As [`Model::measure_seconds`], for a micro-batch of this size.
    fn seconds(&self, size: usize, compute: Dtype, recompute: Recompute) -> anyhow::Result<Vec<f64>>;

    /// As [`Model::check_running_state`], for a micro-batch of this size if there is one.
    fn check_running_state(&self, size: usize, compute: Dtype) -> anyhow::Result<()>;
}

impl<I: Activation, O: Activation, T: 'static> Measurable for Sampled<'_, I, O, T> {
    fn blocks(&self) -> &Blocks {
        self.model.chain()
    }

    fn is_soon_measured(&self) -> bool {
        self.model.is_soon_measured()
    }

    fn activations(
        &self,
        size: usize,
        compute: Dtype,
        splits: bool,
        meter: Option<&dyn HeapMeter>,
    ) -> anyhow::Result<MeasuredActivations> {
        // Blocks and data sets may be made for other numbers of samples than those that are tried.
        catch_panic(|| {
            let batch = (self.samples)(size).context("reading samples")?;
            Ok(self.model.measure_activations(batch, compute, splits, meter)?)
        })
    }

    fn seconds(&self, size: usize, compute: Dtype, recompute: Recompute) -> anyhow::Result<Vec<f64>> {
        let batch = (self.samples)(size)
            .context("pipeline.balance = measured runs each block on a micro-batch before the first step")?;
        Ok(self.model.measure_seconds(batch, compute, recompute)?)
    }

    fn check_running_state(&self, size: usize, compute: Dtype) -> anyhow::Result<()> {
        // A loop that brings its own data learns it in the first step.
        let Ok(batch) = (self.samples)(size) else { return Ok(()) };
        Ok(self.model.check_running_state(batch.input, compute)?)
    }
}
