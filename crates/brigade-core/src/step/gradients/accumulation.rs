//! Adding up gradients of micro-batches in an order that no mesh changes.

/// A running pairwise sum, in the order of the aligned binary tree over the index of the terms.
///
/// Terms 0 and 1 are added first, then 2 and 3, then those two sums, and so on: the sum of
/// `2^k` consecutive aligned terms is always the same subtree. A rank that holds an aligned
/// power-of-two share of the micro-batches therefore computes a subtree of the global sum, and
/// reducing over ranks in the same pattern completes it: one process with 4 micro-batches, 2 ranks
/// with 2 and 4 ranks with 1 give the same bits, which left-to-right addition cannot.
/// It keeps at most `1 + log2(n)` terms alive. (Pairwise summation also has the smaller rounding
/// error: Higham, "The accuracy of floating point summation", 1993.)
///
/// ```
/// use brigade_core::PairwiseSum;
/// let mut sum = PairwiseSum::new();
/// for term in 1..=5 {
///     sum.push(term as f32, |a, b| a + b);
/// }
/// assert_eq!(sum.finish(|a, b| a + b), Some(15.0));
/// ```
#[derive(Debug, Clone)]
pub struct PairwiseSum<T> {
    /// Sums of `2^level` terms, levels strictly decreasing.
    partial: Vec<(u32, T)>,
}

impl<T> Default for PairwiseSum<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> PairwiseSum<T> {
    /// An empty sum.
    pub fn new() -> Self {
        Self { partial: Vec::new() }
    }

    /// Adds the next term.
    pub fn push(&mut self, term: T, mut add: impl FnMut(T, T) -> T) {
        let (mut level, mut sum) = (0, term);
        while self.partial.last().is_some_and(|(top, _)| *top == level) {
            if let Some((_, left)) = self.partial.pop() {
                sum = add(left, sum);
            }
            level += 1;
        }
        self.partial.push((level, sum));
    }

    /// The partial sums that it keeps.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &T> {
        self.partial.iter().map(|(_, sum)| sum)
    }

    /// How many partial sums it keeps.
    pub(crate) fn kept(&self) -> usize {
        self.partial.len()
    }

    /// The sum of all terms, or none if there was none; empties the accumulator.
    pub fn finish(&mut self, mut add: impl FnMut(T, T) -> T) -> Option<T> {
        let mut sum = self.partial.pop()?.1;
        while let Some((_, left)) = self.partial.pop() {
            sum = add(left, sum);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(terms: &[f32]) -> f32 {
        let mut values = terms.to_vec();
        let mut stride = 1;
        while stride < values.len() {
            for i in (0..values.len()).step_by(2 * stride) {
                if i + stride < values.len() {
                    values[i] += values[i + stride];
                }
            }
            stride *= 2;
        }
        values[0]
    }

    fn sum(terms: impl IntoIterator<Item = f32>) -> f32 {
        let mut sum = PairwiseSum::new();
        terms.into_iter().for_each(|term| sum.push(term, |a, b| a + b));
        sum.finish(|a, b| a + b).unwrap()
    }

    proptest! {
        #[test]
        fn is_the_stride_doubling_tree(terms in prop::collection::vec(-1e6f32..1e6, 1..70)) {
            prop_assert_eq!(sum(terms.clone()).to_bits(), tree(&terms).to_bits());
        }

        #[test]
        fn power_of_two_shares_compose(ranks in 1usize..9, log in 0u32..5, seed in any::<u64>()) {
            let share = 1usize << log;
            let terms: Vec<f32> =
                (0..ranks * share).map(|i| ((seed.rotate_left(i as u32) % 1_000_003) as f32).sqrt()).collect();
            let over_ranks = sum(terms.chunks(share).map(|share| sum(share.iter().copied())));
            prop_assert_eq!(over_ranks.to_bits(), sum(terms).to_bits());
        }
    }

    #[test]
    fn empty_is_none() {
        assert_eq!(PairwiseSum::<f32>::new().finish(|a, b| a + b), None);
    }
}
