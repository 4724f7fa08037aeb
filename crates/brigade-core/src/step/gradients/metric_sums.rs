//! Named sums beside the loss: added up without rounding, so that no mesh changes a bit of them.

use brigade_sorted::SortedMap;

use crate::exact_sum::{ExactSum, WORDS};

/// Numbers that carry one metric's sum between ranks.
const WORDS_OF_A_METRIC: usize = 2 * WORDS;

/// The sums of all metrics, in the order in which the model declares them.
pub(crate) struct MetricSums(Vec<SignedSum>);

/// An exact sum of numbers of either sign: their magnitudes, summed apart.
#[derive(Default, Clone)]
struct SignedSum {
    positive: ExactSum,
    negative: ExactSum,
}

impl SignedSum {
    fn add(&mut self, term: f32) {
        if term < 0.0 { self.negative.add_all(&[-term]) } else { self.positive.add_all(&[term]) }
    }

    fn value(&self) -> f64 {
        self.positive.value() - self.negative.value()
    }
}

impl MetricSums {
    pub(crate) fn new(metrics: usize) -> Self {
        Self(vec![SignedSum::default(); metrics])
    }

    /// Adds what each metric gave for each micro-batch.
    pub(crate) fn add<'v>(&mut self, micro_batches: impl Iterator<Item = &'v [f32]>) {
        for values in micro_batches {
            self.0.iter_mut().zip(values).for_each(|(sum, value)| sum.add(*value));
        }
    }

    /// Numbers that [`words`](Self::words) gives for this many metrics.
    pub(crate) fn words_of(metrics: usize) -> usize {
        metrics * WORDS_OF_A_METRIC
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().flat_map(|sum| [&sum.positive, &sum.negative].map(ExactSum::to_words)).flatten()
    }

    /// Adds the sums of another rank.
    pub(crate) fn merge(&mut self, words: &[f64]) {
        for (sum, words) in self.0.iter_mut().zip(words.chunks_exact(WORDS_OF_A_METRIC)) {
            let (positive, negative) = words.split_at(WORDS);
            sum.positive.merge(&ExactSum::from_words(positive));
            sum.negative.merge(&ExactSum::from_words(negative));
        }
    }

    /// Each sum divided by the number of valid targets, or by what they weigh, by name.
    pub(crate) fn means<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
        targets: f64,
    ) -> SortedMap<String, f64> {
        names.zip(&self.0).map(|(name, sum)| (name.to_owned(), sum.value() / targets)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_order_nor_ranks_change_a_sum() {
        let terms = [3.0e8_f32, -1.0e-3, 7.25, -3.0e8, 1.0e-3, 0.5];
        let sum = |shares: &[&[f32]]| {
            let mut all = MetricSums::new(1);
            for share in shares {
                let mut rank = MetricSums::new(1);
                rank.add(share.chunks(1));
                all.merge(&rank.words().collect::<Vec<_>>());
            }
            all.means(["m"].into_iter(), 2.0)["m"]
        };
        assert_eq!(sum(&[&terms]), 7.75 / 2.0);
        assert_eq!(sum(&[&terms[3..], &terms[..3]]), 7.75 / 2.0);
        assert!(sum(&[&[f32::NAN], &[1.0]]).is_nan());
    }
}
