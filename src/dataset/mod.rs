//! The data to train on.

mod function;
mod tokens;

use std::sync::Arc;

use brigade_core::{Activation, Batch};
use brigade_models::WeightsMapping;
use burn::tensor::Device;

pub use function::{Samples, samples};
pub use tokens::TokenDataset;
pub(crate) use tokens::token_tensor;

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
    ///
    /// # Errors
    /// Any error ends the run.
    fn get(&self, index: usize) -> anyhow::Result<Self::Item>;

    /// Collates samples into a micro-batch on the rank's device.
    fn batch(&self, items: Vec<Self::Item>, device: &Device) -> Batch<Self::Input, Self::Target>;

    /// Targets in one sample: the sequence length of a language model, 1 for a classifier.
    fn targets_per_sample(&self) -> usize {
        1
    }
}

/// What [`Session::train`](crate::Session::train) needs besides the model.
pub struct Training<D> {
    /// Samples to train on.
    pub train: Arc<D>,
    /// Samples to validate on.
    pub validation: Option<Arc<D>>,
    /// Where the parameters are in the file of weights.
    pub mapping: WeightsMapping,
    /// Floating-point operations of forward and backward per target, for TFLOP/s and MFU in reports.
    pub flops_per_target: Option<f64>,
    /// Files that belong to the results (a tokenizer, say), by name; rank 0 writes them into the run's folder when training begins.
    pub files: Vec<(String, Vec<u8>)>,
}

impl<D: Dataset> Training<D> {
    /// Trains on `train`, without validation.
    pub fn on(train: D) -> Self {
        Self {
            train: Arc::new(train),
            validation: None,
            mapping: WeightsMapping::default(),
            flops_per_target: None,
            files: Vec::new(),
        }
    }
}
