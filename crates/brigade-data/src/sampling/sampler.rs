//! Which sequences a rank reads in a step: arithmetic without state.

use super::permutation::Permutation;
use crate::error::{Error, Result};

/// Chooses the sequences of every batch of a run.
///
/// The run reads positions 0, 1, 2, … one global batch after another: row `i` of step `s` is position
/// `p = s·G + i`, with G the global batch. Position p lies in epoch `p / len` and holds sequence
/// `permute(seed, epoch, p % len)`, see [`Permutation`]. So every sequence comes exactly once per epoch, no batch is
/// short (a batch may span two epochs), and resuming a run needs only the step.
///
/// On a mesh with m micro-batches of b rows a rank, row `(r·m + k)·b + j` of the global batch is row j of micro-batch
/// k on data-parallel rank r. The global batch itself does not depend on the mesh.
#[derive(Debug, Clone)]
pub struct Sampler {
    len: u64,
    seed: u64,
    global_batch: usize,
    micro_batch: usize,
}

impl Sampler {
    /// A sampler over `len` sequences, with `global_batch` sequences per step over all ranks and `micro_batch`
    /// sequences in a micro-batch of one rank.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] where a number is 0; [`Error::Indivisible`] where the global batch is not a multiple of
    /// the micro-batch.
    pub fn new(len: usize, seed: u64, global_batch: usize, micro_batch: usize) -> Result<Self> {
        at_least_one("training sequences", len)?;
        at_least_one("global_batch_size", global_batch)?;
        at_least_one("micro_batch_size", micro_batch)?;
        let sampler = Self { len: len as u64, seed, global_batch, micro_batch };
        sampler.micro_batches(1)?;
        Ok(sampler)
    }

    /// How many micro-batches a rank runs in a step: G / (b · `dp_size`).
    ///
    /// # Errors
    /// [`Error::Indivisible`], with the nearest global batches that work.
    pub fn micro_batches(&self, dp_size: usize) -> Result<usize> {
        at_least_one("data-parallel size", dp_size)?;
        let (global_batch, micro_batch) = (self.global_batch, self.micro_batch);
        let unit = micro_batch.saturating_mul(dp_size);
        if !global_batch.is_multiple_of(unit) {
            let below = global_batch / unit * unit;
            let nearest = [Some(below).filter(|&size| size > 0), below.checked_add(unit)];
            let nearest: Vec<String> = nearest.into_iter().flatten().map(|size| size.to_string()).collect();
            let nearest = nearest.join(" and ");
            return Err(Error::Indivisible { global_batch, micro_batch, dp_size, unit, nearest });
        }
        Ok(global_batch / unit)
    }

    /// The sequences of micro-batch `k` of data-parallel rank `dp_rank` at `step`, in row order.
    ///
    /// # Errors
    /// [`Error::Indivisible`] as for [`Sampler::micro_batches`]; [`Error::OutOfRange`] where `dp_rank` or `k` does
    /// not exist.
    pub fn micro_batch(&self, step: u64, dp_rank: usize, dp_size: usize, k: usize) -> Result<Vec<usize>> {
        let micro_batches = self.micro_batches(dp_size)?;
        in_range("dp rank", dp_rank as u64, dp_size as u64)?;
        in_range("micro-batch", k as u64, micro_batches as u64)?;
        self.global_micro_batch(step, dp_rank * micro_batches + k)
    }

    /// The sequences of micro-batch `number` of the global batch of `step`, in row order: rows
    /// `number·b .. (number + 1)·b`. For orders of micro-batches other than that of [`Sampler::micro_batch`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where there is no such micro-batch.
    pub fn global_micro_batch(&self, step: u64, number: usize) -> Result<Vec<usize>> {
        in_range("micro-batch", number as u64, (self.global_batch / self.micro_batch) as u64)?;
        Ok(self.rows(step, number * self.micro_batch, self.micro_batch))
    }

    /// The sequences of the whole global batch of `step`, in row order.
    pub fn global_batch(&self, step: u64) -> Vec<usize> {
        self.rows(step, 0, self.global_batch)
    }

    /// The epoch, from 0, of the first row of `step`.
    pub fn epoch(&self, step: u64) -> u64 {
        epoch_of(self.position(step, 0), self.len)
    }

    /// How many epochs a run has read after `steps` steps, as a fraction: 1.5 is one and a half.
    pub fn epochs_after(&self, steps: u64) -> f64 {
        steps as f64 * self.global_batch as f64 / self.len as f64
    }

    fn position(&self, step: u64, row: usize) -> u128 {
        u128::from(step) * self.global_batch as u128 + row as u128
    }

    fn rows(&self, step: u64, first_row: usize, count: usize) -> Vec<usize> {
        let mut epoch = epoch_of(self.position(step, first_row), self.len);
        let mut permutation = Permutation::new(self.len, self.seed, epoch);
        (first_row..first_row + count)
            .map(|row| {
                let position = self.position(step, row);
                if epoch_of(position, self.len) != epoch {
                    epoch = epoch_of(position, self.len);
                    permutation = Permutation::new(self.len, self.seed, epoch);
                }
                let index = (position % u128::from(self.len)) as u64;
                permutation.apply(index).unwrap_or(index) as usize
            })
            .collect()
    }
}

/// Epochs are counted in 64 bits and start over after the last.
fn epoch_of(position: u128, len: u64) -> u64 {
    (position / u128::from(len)) as u64
}

pub(super) fn at_least_one(option: &'static str, given: usize) -> Result<()> {
    match given {
        0 => {
            Err(Error::InvalidSetting { option, given: "0".into(), allowed: "it must be at least 1".into() })
        }
        _ => Ok(()),
    }
}

pub(super) fn in_range(what: &'static str, given: u64, count: u64) -> Result<()> {
    if given < count { Ok(()) } else { Err(Error::OutOfRange { what, given, count }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over one epoch's positions, read through the ranks' micro-batches, every sequence comes exactly once.
        #[test]
        fn every_sequence_once_an_epoch(
            len in 1usize..400, seed: u64, dp_size in 1usize..5, micro_batch in 1usize..5, micro_batches in 1usize..4,
            epochs in 1usize..4,
        ) {
            let global_batch = dp_size * micro_batch * micro_batches;
            let sampler = Sampler::new(len, seed, global_batch, micro_batch).unwrap();
            let mut read = Vec::new();
            for step in 0..(epochs * len).div_ceil(global_batch) as u64 {
                for rank in 0..dp_size {
                    for k in 0..sampler.micro_batches(dp_size).unwrap() {
                        read.extend(sampler.micro_batch(step, rank, dp_size, k).unwrap());
                    }
                }
            }
            for epoch in read.chunks_exact(len) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                prop_assert_eq!(epoch, (0..len).collect::<Vec<_>>());
            }
        }

        #[test]
        fn the_global_order_is_the_same_for_every_mesh(
            len in 1usize..400, seed: u64, micro_batch in 1usize..4, step in 0u64..1_000_000,
        ) {
            let global_batch = 12 * micro_batch;
            let sampler = Sampler::new(len, seed, global_batch, micro_batch).unwrap();
            for dp_size in [1, 2, 3, 4, 6, 12] {
                let mut rows = Vec::new();
                for rank in 0..dp_size {
                    for k in 0..12 / dp_size {
                        rows.extend(sampler.micro_batch(step, rank, dp_size, k).unwrap());
                    }
                }
                prop_assert_eq!(&rows, &sampler.global_batch(step));
            }
        }
    }

    #[test]
    fn epochs_have_different_orders() {
        let sampler = Sampler::new(100, 1, 100, 1).unwrap();
        assert_ne!(sampler.global_batch(0), sampler.global_batch(1));
        assert_ne!(sampler.global_batch(0), Sampler::new(100, 2, 100, 1).unwrap().global_batch(0));
        assert_eq!((sampler.epoch(0), sampler.epoch(1)), (0, 1));
        assert_eq!(Sampler::new(100, 1, 40, 1).unwrap().epoch(2), 0);
        assert_eq!(sampler.epochs_after(3), 3.0);
    }

    #[test]
    fn the_last_step_of_all_does_not_overflow() {
        let sampler = Sampler::new(7, 1, 1 << 20, 1).unwrap();
        assert_eq!(sampler.micro_batch(u64::MAX, 0, 1, 0).unwrap().len(), 1);
    }

    #[test]
    fn a_global_batch_that_does_not_divide_names_those_that_do() {
        let sampler = Sampler::new(10, 0, 20, 4).unwrap();
        let message = sampler.micro_batches(2).unwrap_err().to_string();
        assert!(message.contains("global_batch_size = 20") && message.contains("16 and 24"), "{message}");
        let message = Sampler::new(10, 0, 2, 4).unwrap_err().to_string();
        assert!(message.ends_with("work: 4"), "{message}");
        assert!(Sampler::new(0, 0, 4, 4).is_err());
        assert!(sampler.micro_batches(0).is_err());
        assert!(sampler.micro_batch(0, 5, 5, 0).is_err());
        assert!(sampler.micro_batch(0, 0, 1, 5).is_err());
    }
}
