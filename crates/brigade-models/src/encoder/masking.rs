//! Which tokens are masked, and how well they are predicted.

use brigade_core::{Chain, Model};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::gpt::{Targets, cross_entropy_with};
use crate::metrics::ACCURACY;
use crate::{Logits, LossOptions, Tokens};

/// With the cross entropy of masked tokens, in nats; metric: [`ACCURACY`]. Positions whose target does not count are not masked.
pub fn with_masked_tokens(chain: Chain<Tokens, Logits>) -> Model<Tokens, Logits, Targets> {
    with_masked_tokens_in(chain, 1)
}

/// [`with_masked_tokens`], with fewer logits in memory at a time.
pub(super) fn with_masked_tokens_in(
    chain: Chain<Tokens, Logits>,
    rows_divisor: usize,
) -> Model<Tokens, Logits, Targets> {
    chain.loss_with_metrics([ACCURACY], move |logits, targets| {
        cross_entropy_with(logits, targets, LossOptions::default(), rows_divisor)
    })
}

/// How tokens are masked for an encoder to predict (Devlin et al., 2018): of those chosen, 80% become the mask, 10% any token, and 10% stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Masking {
    /// The token that stands for those that are masked.
    pub mask: u32,
    /// How likely a token is chosen.
    pub probability: f64,
    /// Tokens are below it.
    pub vocabulary: u32,
    /// Tokens that are never chosen.
    pub special: Vec<u32>,
}

impl Masking {
    /// Masks tokens, as `seed` says, and returns which of them are to be predicted. Those that do not count never are.
    pub fn mask(&self, tokens: &mut [u32], counts: &[bool], seed: u64) -> Vec<bool> {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let chosen = tokens.iter_mut().zip(counts).map(|(token, counts)| {
            // As many numbers for each token, whatever becomes of it.
            let [choice, kind, other] = [(); 3].map(|()| generator.next_u32());
            if !counts || share(choice) >= self.probability || self.special.contains(token) {
                return false;
            }
            match share(kind) {
                kind if kind < 0.8 => *token = self.mask,
                kind if kind < 0.9 => {
                    *token = ((u64::from(other) * u64::from(self.vocabulary)) >> 32) as u32;
                }
                _ => {}
            }
            true
        });
        chosen.collect()
    }
}

/// From 0 to below 1.
fn share(number: u32) -> f64 {
    f64::from(number) / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_masked_as_asked_for_and_never_special_tokens_or_padding() {
        let masking = Masking { mask: 4, probability: 0.15, vocabulary: 1000, special: vec![0, 1, 2, 3, 4] };
        let before: Vec<u32> = (0..100_000).map(|index| if index % 10 == 0 { 2 } else { 100 }).collect();
        let counts: Vec<bool> = (0..before.len()).map(|index| index < 90_000).collect();
        let mut after = before.clone();
        let chosen = masking.mask(&mut after, &counts, 7);
        let mut again = before.clone();
        assert_eq!((masking.mask(&mut again, &counts, 7), &again), (chosen.clone(), &after));
        for index in 0..before.len() {
            assert!(chosen[index] || after[index] == before[index]);
            assert!(!chosen[index] || counts[index] && before[index] == 100);
        }
        let all = chosen.iter().filter(|chosen| **chosen).count() as f64;
        let those = |is: &dyn Fn(u32) -> bool| {
            (0..before.len()).filter(|index| chosen[*index] && is(after[*index])).count() as f64 / all
        };
        assert!((all / 81_000.0 - 0.15).abs() < 0.01, "{all}");
        assert!((those(&|token| token == 4) - 0.8).abs() < 0.02);
        assert!((those(&|token| token == 100) - 0.1).abs() < 0.02);
    }
}
