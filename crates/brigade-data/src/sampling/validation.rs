//! Which validation samples a rank reads, one micro-batch at a time.

use std::ops::Range;

use super::sampler::{at_least_one, in_range};
use crate::error::Result;

/// Reads every sample of a validation set once, in order, in micro-batches over the data-parallel ranks.
///
/// Every rank runs [`micro_batches`](Self::micro_batches) micro-batches. With n ranks and micro-batches of b samples,
/// micro-batch k of rank r holds samples `(k·n + r)·b .. (k·n + r + 1)·b`, cut at the end of the set. Where that leaves
/// none, the rank has no samples for this micro-batch: it takes part in the ranks' communication, and adds nothing to the
/// loss.
///
/// A rank needs one micro-batch on its device at a time:
///
/// ```
/// use brigade_data::ValidationSampler;
///
/// # fn main() -> brigade_data::Result<()> {
/// // 5 samples, 2 in a micro-batch, 2 data-parallel ranks: this is the second rank.
/// let sampler = ValidationSampler::new(5, 2, 2)?;
/// let mut micro_batches = sampler.for_rank(1)?;
/// assert_eq!(micro_batches.len(), 2);
/// assert_eq!(micro_batches.next(), Some(Some(2..4)));
/// // The other rank has the last sample; this one only takes part.
/// assert_eq!(micro_batches.next(), Some(None));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ValidationSampler {
    len: usize,
    micro_batch: usize,
    dp_size: usize,
}

impl ValidationSampler {
    /// A sampler over `len` samples (without any, there are no micro-batches) for `dp_size` data-parallel ranks and
    /// micro-batches of `micro_batch` samples.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`](crate::Error::InvalidSetting) where `micro_batch` or `dp_size` is 0.
    pub fn new(len: usize, micro_batch: usize, dp_size: usize) -> Result<Self> {
        at_least_one("micro_batch_size", micro_batch)?;
        at_least_one("data-parallel size", dp_size)?;
        Ok(Self { len, micro_batch, dp_size })
    }

    /// How many micro-batches every rank runs, the same number on all of them.
    pub fn micro_batches(&self) -> usize {
        self.len.div_ceil(self.micro_batch.saturating_mul(self.dp_size))
    }

    /// The samples of micro-batch `k` of data-parallel rank `dp_rank`; `None` where it has none.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) where `k` or `dp_rank` does not exist.
    pub fn micro_batch(&self, k: usize, dp_rank: usize) -> Result<Option<Range<usize>>> {
        in_range("validation micro-batch", k as u64, self.micro_batches() as u64)?;
        in_range("dp rank", dp_rank as u64, self.dp_size as u64)?;
        Ok(self.samples(k, dp_rank))
    }

    /// The micro-batches of data-parallel rank `dp_rank` one after the other, as many as every other rank has: each the
    /// samples to read, or `None`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) where `dp_rank` does not exist.
    pub fn for_rank(
        &self,
        dp_rank: usize,
    ) -> Result<impl ExactSizeIterator<Item = Option<Range<usize>>> + use<>> {
        in_range("dp rank", dp_rank as u64, self.dp_size as u64)?;
        let sampler = self.clone();
        Ok((0..self.micro_batches()).map(move |k| sampler.samples(k, dp_rank)))
    }

    fn samples(&self, k: usize, dp_rank: usize) -> Option<Range<usize>> {
        let first = (k * self.dp_size + dp_rank).saturating_mul(self.micro_batch);
        let samples = first..first.saturating_add(self.micro_batch).min(self.len);
        (!samples.is_empty()).then_some(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Micro-batch by micro-batch over all ranks, every sample comes exactly once and in order, on as many ranks as
        /// there are, each of which runs the same number of micro-batches.
        #[test]
        fn every_sample_is_read_once_and_in_order(
            len in 0usize..200, micro_batch in 1usize..6, dp_size in 1usize..6,
        ) {
            let sampler = ValidationSampler::new(len, micro_batch, dp_size).unwrap();
            let ranks: Vec<Vec<_>> =
                (0..dp_size).map(|rank| sampler.for_rank(rank).unwrap().collect()).collect();
            let mut read = Vec::new();
            for k in 0..sampler.micro_batches() {
                for (rank, micro_batches) in ranks.iter().enumerate() {
                    prop_assert_eq!(micro_batches.len(), sampler.micro_batches());
                    prop_assert_eq!(&micro_batches[k], &sampler.micro_batch(k, rank).unwrap());
                    if let Some(samples) = micro_batches[k].clone() {
                        prop_assert!(!samples.is_empty() && samples.len() <= micro_batch);
                        read.extend(samples);
                    }
                }
                prop_assert!(ranks[0][k].is_some(), "the first rank has samples in every micro-batch");
            }
            prop_assert_eq!(read, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_rank_without_samples_still_counts_the_micro_batch() {
        let sampler = ValidationSampler::new(5, 2, 3).unwrap();
        let of_rank = |rank| sampler.for_rank(rank).unwrap().collect::<Vec<_>>();
        assert_eq!(of_rank(0), [Some(0..2)]);
        assert_eq!(of_rank(2), [Some(4..5)]);
        let sampler = ValidationSampler::new(7, 2, 3).unwrap();
        let of_rank = |rank| sampler.for_rank(rank).unwrap().collect::<Vec<_>>();
        assert_eq!(of_rank(0), [Some(0..2), Some(6..7)]);
        assert_eq!(of_rank(1), [Some(2..4), None]);
        assert_eq!(ValidationSampler::new(0, 2, 3).unwrap().micro_batches(), 0);
    }

    #[test]
    fn what_does_not_exist_is_an_error() {
        let sampler = ValidationSampler::new(5, 2, 2).unwrap();
        for (k, rank) in [(2, 0), (0, 2)] {
            let message = sampler.micro_batch(k, rank).unwrap_err().to_string();
            assert!(message.ends_with("2 does not exist: there are 2"), "{message}");
        }
        assert!(sampler.for_rank(2).is_err());
        assert!(ValidationSampler::new(5, 0, 2).is_err() && ValidationSampler::new(5, 2, 0).is_err());
        let huge = ValidationSampler::new(usize::MAX, usize::MAX, usize::MAX).unwrap();
        assert_eq!((huge.micro_batches(), huge.micro_batch(0, 1).unwrap()), (1, None));
    }
}
