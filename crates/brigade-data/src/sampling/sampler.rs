//! Which sequences a rank reads in a step: arithmetic without state.

use brigade_random::keyed;

use super::permutation::Permutation;
use super::shares::{Part, SourceShare, parts};
use crate::error::{Error, Result};

/// Chooses the sequences of every batch of a run.
///
/// The run reads positions 0, 1, 2, … one global batch after another: row `i` of step `s` is position
/// `p = s·G + i`, with G the global batch. Position p lies in epoch `p / len` and holds sequence
/// `permute(seed, epoch, p % len)`, see [`Permutation`]. So every sequence comes exactly once per epoch, no batch is
/// short (a batch may span two epochs), and resuming a run needs only the step.
///
/// Of several sources with weights ([`Sampler::mixed`]), `len` is the number of all their sequences, and an epoch has of each source as
/// many positions as its weight says: the share of `len`, to within one. A source that has fewer sequences than that repeats them within an
/// epoch, and one that has more continues in the next epoch: its positions count on from epoch to epoch, and every sequence comes once,
/// in random order, before one comes again. Where a source has as many positions as sequences, that is its order in the epoch.
///
/// On a mesh with m micro-batches of b rows a rank, row `(r·m + k)·b + j` of the global batch is row j of micro-batch
/// k on data-parallel rank r. The global batch itself does not depend on the mesh.
#[derive(Debug, Clone)]
pub struct Sampler {
    len: u64,
    /// In the order of the sources.
    parts: Vec<Part>,
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
        Self::mixed(&[SourceShare { len, weight: 1.0 }], seed, global_batch, micro_batch)
    }

    /// A sampler over several sources, whose sequences are numbered one source after the other.
    ///
    /// # Errors
    /// As [`Sampler::new`], and [`Error::InvalidSetting`] where a weight is not above 0, a source is empty, or there is none.
    pub fn mixed(shares: &[SourceShare], seed: u64, global_batch: usize, micro_batch: usize) -> Result<Self> {
        let parts = parts(shares)?;
        at_least_one("global_batch_size", global_batch)?;
        at_least_one("micro_batch_size", micro_batch)?;
        let len = parts.iter().map(|part| part.len).sum();
        let sampler = Self { len, parts, seed, global_batch, micro_batch };
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
                self.sequence(epoch, permutation.apply(index).unwrap_or(index)) as usize
            })
            .collect()
    }
}

/// Tells the orders of sources from those of epochs.
const SOURCES: u64 = 0x736f_7572_6365_7321;

impl Sampler {
    /// The sequence that is `drawn` in an epoch, a number of which the first ones stand for the first source, and so on.
    fn sequence(&self, epoch: u64, drawn: u64) -> u64 {
        let number = self.parts.partition_point(|part| part.first_draw + part.draws <= drawn);
        let Some(part) = self.parts.get(number) else { return drawn };
        let draw = drawn - part.first_draw;
        if part.draws == part.len {
            return part.first_sequence + draw;
        }
        let draw = u128::from(epoch) * u128::from(part.draws) + u128::from(draw);
        let index = (draw % u128::from(part.len)) as u64;
        let order = keyed(keyed(self.seed, SOURCES), number as u64);
        let order = Permutation::new(part.len, order, epoch_of(draw, part.len));
        part.first_sequence + order.apply(index).unwrap_or(index)
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

    proptest! {
        /// Every epoch has of each source what its weight says, and each source's sequences come once before one comes again.
        #[test]
        fn sources_come_by_their_weights(
            sources in proptest::collection::vec((1usize..60, 1u32..50), 1..5), seed: u64,
        ) {
            let shares: Vec<SourceShare> =
                sources.iter().map(|&(len, weight)| SourceShare { len, weight: f64::from(weight) }).collect();
            let (len, weights) = (shares.iter().map(|share| share.len).sum(), shares.iter().map(|share| share.weight));
            let weights: f64 = weights.sum();
            let sampler = Sampler::mixed(&shares, seed, len, 1).unwrap();
            let (mut counts, mut first, epochs) = (vec![0usize; len], 0, 3);
            let mut drawn = Vec::new();
            for epoch in 0..epochs {
                let batch = sampler.global_batch(epoch);
                prop_assert_eq!(batch.len(), len);
                batch.iter().for_each(|&sequence| counts[sequence] += 1);
                drawn.push(batch);
            }
            for share in &shares {
                let own = first..first + share.len;
                let of_epoch = |batch: &Vec<usize>| batch.iter().filter(|sequence| own.contains(sequence)).count();
                let draws = of_epoch(&drawn[0]);
                prop_assert!(drawn.iter().all(|batch| of_epoch(batch) == draws));
                let ideal = share.weight / weights * len as f64;
                prop_assert!((draws as f64 - ideal).abs() < shares.len() as f64 && draws > 0);
                let (least, most) = (counts[own.clone()].iter().min(), counts[own].iter().max());
                prop_assert!(most.unwrap() - least.unwrap() <= 1);
                first += share.len;
            }
            prop_assert_eq!(counts.iter().sum::<usize>(), epochs as usize * len);
        }
    }

    #[test]
    fn weights_in_the_ratio_of_sizes_are_one_set_of_sequences() {
        let shares = [SourceShare { len: 30, weight: 3.0 }, SourceShare { len: 10, weight: 1.0 }];
        let (mixed, plain) = (Sampler::mixed(&shares, 5, 8, 2).unwrap(), Sampler::new(40, 5, 8, 2).unwrap());
        assert!((0..20).all(|step| mixed.global_batch(step) == plain.global_batch(step)));
    }

    /// The order is part of what a run's seed promises.
    #[test]
    fn the_order_of_sources_is_fixed() {
        let shares = [SourceShare { len: 2, weight: 3.0 }, SourceShare { len: 6, weight: 1.0 }];
        let sampler = Sampler::mixed(&shares, 42, 8, 1).unwrap();
        assert_eq!(sampler.global_batch(0), FIXED.0);
        assert_eq!(sampler.global_batch(1), FIXED.1);
        for (weight, allowed) in [(0.0, "above 0"), (-1.0, "above 0"), (f64::NAN, "above 0")] {
            let error = Sampler::mixed(&[SourceShare { len: 3, weight }], 0, 1, 1).unwrap_err().to_string();
            assert!(error.starts_with("data.source.weight = ") && error.contains(allowed), "{error}");
        }
        assert!(Sampler::mixed(&[], 0, 1, 1).is_err());
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

    const FIXED: ([usize; 8], [usize; 8]) = ([1, 0, 1, 5, 1, 2, 0, 0], [1, 1, 0, 7, 0, 6, 1, 0]);
}
