//! The data to train on.

mod function;
mod mixed;

use std::sync::Arc;

use brigade_core::{Activation, Batch};
use brigade_data::SourceShare;
use burn::tensor::Device;

pub use function::{Samples, samples};
pub use mixed::Mixed;

/// A map-style dataset: samples by index. Brigade decides which rank reads which sample at which step.
pub trait Dataset: Send + Sync + 'static {
    /// A sample as [`get`](Self::get) reads it, on prefetching threads.
    type Item: Send + 'static;
    /// The input of the model's first block.
    type Input: Activation + Clone;
    /// The loss's second argument, beside the model's output.
    type Target: Clone;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads one sample; `index` is below [`len`](Self::len).
    /// It must not draw from Burn's random generator, which blocks draw from at the same time; [`batch`](Self::batch) may.
    ///
    /// # Errors
    /// Any error ends the run.
    fn get(&self, index: usize) -> anyhow::Result<Self::Item>;

    /// Collates samples into a micro-batch on the rank's device. What it draws from Burn's random generator (to augment images,
    /// say) is a function of the seed, the step and the micro-batch's number in the global batch, so it is the same on any mesh.
    fn batch(&self, items: Vec<Self::Item>, device: &Device) -> Batch<Self::Input, Self::Target>;

    /// Whether [`batch`](Self::batch) reads more of the dataset than the samples that it is given, so that it cannot collate those of another one of the
    /// same type. Such datasets are refused in [`Mixed`].
    fn collates_only_its_own(&self) -> bool {
        false
    }

    /// Targets in one sample: the sequence length of a language model, 1 for a classifier.
    fn targets_per_sample(&self) -> usize {
        1
    }

    /// What targets are called where they are counted, in the plural: `samples`, `tokens`, `images`.
    fn unit(&self) -> &str {
        "samples"
    }

    /// The parts that samples are drawn from, in the order of the samples' numbers, with their weights: one part, unless it is
    /// [`Mixed`].
    fn shares(&self) -> Vec<SourceShare> {
        vec![SourceShare { len: self.len(), weight: 1.0 }]
    }
}

impl<D: Dataset> Dataset for Arc<D> {
    type Item = D::Item;
    type Input = D::Input;
    type Target = D::Target;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> anyhow::Result<D::Item> {
        (**self).get(index)
    }

    fn batch(&self, items: Vec<D::Item>, device: &Device) -> Batch<D::Input, D::Target> {
        (**self).batch(items, device)
    }

    fn collates_only_its_own(&self) -> bool {
        (**self).collates_only_its_own()
    }

    fn targets_per_sample(&self) -> usize {
        (**self).targets_per_sample()
    }

    fn unit(&self) -> &str {
        (**self).unit()
    }

    fn shares(&self) -> Vec<SourceShare> {
        (**self).shares()
    }
}
