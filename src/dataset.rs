//! What is trained on.

use std::marker::PhantomData;
use std::sync::Arc;

use brigade_core::{Activation, Batch};
use brigade_models::Names;
use burn::tensor::Device;

/// Samples by number. Which rank reads which sample at which step is Brigade's concern.
pub trait Dataset: Send + Sync + 'static {
    /// A sample as it is read, on reading-ahead threads.
    type Item: Send + 'static;
    /// What the model's first block takes.
    type Input: Activation + Clone;
    /// What the loss takes beside the model's output.
    type Target: Clone;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads one sample; `index` is below [`len`](Self::len).
    ///
    /// # Errors
    /// Whatever goes wrong; it ends the run.
    fn get(&self, index: usize) -> anyhow::Result<Self::Item>;

    /// Joins samples to a micro-batch on the rank's device.
    fn batch(&self, items: Vec<Self::Item>, device: &Device) -> Batch<Self::Input, Self::Target>;

    /// Targets in one sample: the sequence length of a language model, 1 for a classifier.
    fn targets_per_sample(&self) -> usize {
        1
    }
}

/// Samples that are computed, or held in memory: see [`samples`].
pub struct Samples<F, I, T> {
    len: usize,
    batch: F,
    types: PhantomData<fn() -> (I, T)>,
}

/// A dataset of `len` samples, each with one target, from one function: from the numbers of a
/// micro-batch's samples to input and target on the rank's device. It runs on the thread that
/// trains; where reading takes time, or targets are masked, implement [`Dataset`].
pub fn samples<F, I, T>(len: usize, batch: F) -> Samples<F, I, T>
where
    F: Fn(&[usize], &Device) -> (I, T) + Send + Sync + 'static,
{
    Samples { len, batch, types: PhantomData }
}

impl<F, I, T> Dataset for Samples<F, I, T>
where
    F: Fn(&[usize], &Device) -> (I, T) + Send + Sync + 'static,
    I: Activation + Clone,
    T: Clone + 'static,
{
    type Item = usize;
    type Input = I;
    type Target = T;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> anyhow::Result<usize> {
        Ok(index)
    }

    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch<I, T> {
        let (input, target) = (self.batch)(&items, device);
        Batch { input, target, valid_targets: items.len() }
    }
}

/// What [`Session::train`](crate::Session::train) needs beside the model.
pub struct Training<D> {
    /// Samples to train on.
    pub train: Arc<D>,
    /// Samples to validate on.
    pub validation: Option<Arc<D>>,
    /// The parameters' names in the file of weights.
    pub names: Names,
    /// Floating-point operations of forward and backward for one target, for the rate in reports.
    pub flops_per_target: Option<f64>,
    /// Files that belong to the results (a tokenizer, say), by name; rank 0 writes them when training begins.
    pub files: Vec<(String, Vec<u8>)>,
}

impl<D: Dataset> Training<D> {
    /// Trains on `train`, without validation.
    pub fn on(train: D) -> Self {
        Self {
            train: Arc::new(train),
            validation: None,
            names: Names::default(),
            flops_per_target: None,
            files: Vec::new(),
        }
    }
}
