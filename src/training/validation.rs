//! What is validated on.

use std::ops::Range;

use brigade_core::Batch;
use burn::tensor::Device;

use crate::dataset::Dataset;

/// Samples that are read in micro-batches, of whatever type they are.
pub(crate) trait MicroBatchSource<I, T>: Send + Sync {
    /// Number of samples.
    fn samples(&self) -> usize;

    /// Reads samples into a micro-batch.
    fn read(&self, samples: Range<usize>, device: &Device) -> anyhow::Result<Batch<I, T>>;
}

impl<D: Dataset> MicroBatchSource<D::Input, D::Target> for D {
    fn samples(&self) -> usize {
        self.len()
    }

    fn read(&self, samples: Range<usize>, device: &Device) -> anyhow::Result<Batch<D::Input, D::Target>> {
        let items = samples.map(|index| self.get(index)).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(self.batch(items, device))
    }
}
