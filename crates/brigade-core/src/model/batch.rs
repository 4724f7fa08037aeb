//! A micro-batch, and what its loss is a sum over.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::activation::{Activation, bytes, flatten};
use crate::error::Result;
use crate::exact_sum::{ExactSum, WORDS};

/// One micro-batch of a rank.
///
/// ```
/// use brigade_core::Batch;
/// let (input, target) = ("two sentences", "two labels");
/// assert_eq!(Batch::new(input, target, 2).valid_targets, 2);
/// // The loss multiplies each target's own loss by its weight; Brigade divides by the sum of all weights.
/// assert_eq!(Batch::weighted(input, target, &[0.5, 0.0]).valid_targets, 1);
/// ```
#[derive(Debug, Clone)]
pub struct Batch<I, T> {
    /// What the first block takes.
    pub input: I,
    /// What the loss takes beside the model's output.
    pub target: T,
    /// Number of targets that count in the loss (tokens that are not masked, samples).
    pub valid_targets: usize,
    weight: Option<ExactSum>,
}

impl<I, T> Batch<I, T> {
    /// A micro-batch whose loss is a sum over `valid_targets` targets that weigh the same.
    pub fn new(input: I, target: T, valid_targets: usize) -> Self {
        Self { input, target, valid_targets, weight: None }
    }

    /// A micro-batch whose loss is a sum over targets that each count `weights` times: finite numbers of at least 0, one for each
    /// target. The losses of a global batch, and its metrics, are divided by the sum of all its weights, which is exact: neither the
    /// mesh nor the size of micro-batches changes a bit of it. Targets with weight 0 are not valid.
    ///
    /// The loss must multiply by the weights itself, so they belong to `target` as well.
    pub fn weighted(input: I, target: T, weights: &[f32]) -> Self {
        let mut weight = ExactSum::default();
        weight.add_all(weights);
        let valid_targets = weights.iter().filter(|weight| **weight != 0.0).count();
        Self { input, target, valid_targets, weight: Some(weight) }
    }

    /// Whether another micro-batch has the bytes of this one's input, and as many valid targets of the same weight. The targets themselves, which may be of any type, are not compared.
    ///
    /// # Errors
    /// If the device does not give the values.
    pub fn has_input_of(&self, other: &Self) -> Result<bool>
    where
        I: Activation + Clone,
    {
        let targets = |batch: &Self| (batch.valid_targets, batch.weight.clone());
        Ok(targets(self) == targets(other) && self.input_bytes()? == other.input_bytes()?)
    }

    /// A number that is the same for micro-batches with the same bytes of the input and as many valid targets, and hardly for others. It may change with the version of the program.
    ///
    /// # Errors
    /// If the device does not give the values.
    pub fn input_digest(&self) -> Result<u64>
    where
        I: Activation + Clone,
    {
        let mut hasher = DefaultHasher::new();
        (self.valid_targets, self.input_bytes()?).hash(&mut hasher);
        Ok(hasher.finish())
    }

    /// Shapes and bytes of the input's tensors.
    fn input_bytes(&self) -> Result<(String, Vec<Vec<u8>>)>
    where
        I: Activation + Clone,
    {
        let parts = flatten(self.input.clone());
        Ok((parts.describe(), bytes(parts)?))
    }
}

/// The valid targets of some micro-batches, and what they weigh.
#[derive(Debug, Clone, Default)]
pub(crate) struct TargetSum {
    pub count: u64,
    weight: ExactSum,
}

impl TargetSum {
    /// Numbers that represent it between ranks.
    pub(crate) const WORDS: usize = 1 + WORDS;

    pub(crate) fn of<I, T>(batches: &[Batch<I, T>]) -> Self {
        let mut sum = Self::default();
        batches.iter().for_each(|batch| sum.add(batch));
        sum
    }

    fn add<I, T>(&mut self, batch: &Batch<I, T>) {
        self.count += batch.valid_targets as u64;
        match &batch.weight {
            Some(weight) => self.weight.merge(weight),
            None => self.weight.add_whole(batch.valid_targets as u64),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.weight.merge(&other.weight);
    }

    /// What losses are divided by; NaN if a weight is negative or not finite.
    pub(crate) fn weight(&self) -> f64 {
        self.weight.value()
    }

    pub(crate) fn to_words(&self) -> Vec<f64> {
        let mut words = vec![self.count as f64];
        words.extend(self.weight.to_words());
        words
    }

    /// The sum over ranks that each gave their words, with others behind them.
    pub(crate) fn over_ranks<'w>(ranks: impl IntoIterator<Item = &'w Vec<f64>>) -> Self {
        let mut sum = Self::default();
        for words in ranks {
            let weight = ExactSum::from_words(&words[1..Self::WORDS]);
            sum.merge(&Self { count: words[0] as u64, weight });
        }
        sum
    }
}
