//! A dataset from one function.

use std::marker::PhantomData;

use brigade_core::{Activation, Batch};
use burn::tensor::Device;

use super::Dataset;

/// The dataset that [`samples`] makes.
pub struct Samples<F, I, T> {
    len: usize,
    batch: F,
    unit: &'static str,
    types: PhantomData<fn() -> (I, T)>,
}

/// A dataset of `len` samples with one target each, from one function that turns the indices of a micro-batch's samples into
/// input and target on the rank's device. It runs on the training thread; if reading takes time, or targets are masked,
/// implement [`Dataset`] instead.
pub fn samples<F, I, T>(len: usize, batch: F) -> Samples<F, I, T>
where
    F: Fn(&[usize], &Device) -> (I, T) + Send + Sync + 'static,
{
    Samples { len, batch, unit: "samples", types: PhantomData }
}

impl<F, I, T> Samples<F, I, T> {
    /// What the samples are called where they are counted, in the plural: `images`, say.
    pub fn counted_in(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }
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
        Batch::new(input, target, items.len())
    }

    /// A function that captures nothing is the same in every dataset of this type.
    fn collates_only_its_own(&self) -> bool {
        size_of::<F>() > 0
    }

    fn unit(&self) -> &str {
        self.unit
    }
}
