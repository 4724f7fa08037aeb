//! The order of samples for burn-train, whose `DataLoader` shuffles.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataset::{Dataset, DatasetError};

/// Samples that are read one after the other, however often a `DataLoader` begins anew: each epoch goes on where the last one ended.
pub struct InOrder {
    samples: Vec<usize>,
    epochs: usize,
    read: AtomicUsize,
}

impl InOrder {
    /// The samples of a number of epochs of one size.
    pub fn new(samples: Vec<usize>, epochs: usize) -> Self {
        Self { samples, epochs, read: AtomicUsize::new(0) }
    }
}

impl Dataset<usize> for InOrder {
    fn get(&self, _: usize) -> Result<usize, DatasetError> {
        Ok(self.samples[self.read.fetch_add(1, Ordering::Relaxed)])
    }

    fn len(&self) -> usize {
        self.samples.len() / self.epochs
    }
}
