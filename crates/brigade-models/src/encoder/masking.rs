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
    /// Masks tokens of rows of a length, as `seed` says, and returns which of them are to be predicted. Those that do not count never are; of every row with tokens that can be
    /// chosen at least one is, so that there is always something to learn.
    pub fn mask(&self, tokens: &mut [u32], counts: &[bool], row_length: usize, seed: u64) -> Vec<bool> {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        let row_length = row_length.max(1);
        let rows = tokens.chunks_mut(row_length).zip(counts.chunks(row_length));
        rows.flat_map(|(tokens, counts)| self.mask_row(tokens, counts, &mut generator)).collect()
    }

    fn mask_row(&self, tokens: &mut [u32], counts: &[bool], generator: &mut ChaCha8Rng) -> Vec<bool> {
        // As many numbers for each token, whatever becomes of it.
        let drawn: Vec<[u32; 3]> = tokens.iter().map(|_| [(); 3].map(|()| generator.next_u32())).collect();
        let can_be_chosen = |index: &usize| counts[*index] && !self.special.contains(&tokens[*index]);
        let candidates: Vec<usize> = (0..tokens.len()).filter(can_be_chosen).collect();
        let first = candidates.iter().copied().min_by_key(|index| drawn[*index][0]);
        let mut chosen = vec![false; tokens.len()];
        for index in candidates {
            let [choice, kind, other] = drawn[index];
            if share(choice) >= self.probability && Some(index) != first {
                continue;
            }
            chosen[index] = true;
            match share(kind) {
                kind if kind < 0.8 => tokens[index] = self.mask,
                kind if kind < 0.9 => {
                    tokens[index] = ((u64::from(other) * u64::from(self.vocabulary)) >> 32) as u32;
                }
                _ => {}
            }
        }
        chosen
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
        let chosen = masking.mask(&mut after, &counts, 1000, 7);
        let mut again = before.clone();
        assert_eq!((masking.mask(&mut again, &counts, 1000, 7), &again), (chosen.clone(), &after));
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

    #[test]
    fn a_token_of_every_row_is_masked_whatever_is_drawn() {
        let masking = Masking { mask: 4, probability: 1e-9, vocabulary: 1000, special: vec![2] };
        let rows = [[2, 100, 100, 2], [2, 100, 2, 2], [2, 2, 2, 2], [100, 100, 100, 100]];
        let counts = [[true; 4], [true; 4], [true; 4], [false; 4]];
        let mut firsts = Vec::new();
        for seed in 0..50 {
            let mut tokens = rows.concat();
            let chosen = masking.mask(&mut tokens, &counts.concat(), 4, seed);
            let of_row = |row: usize| chosen[4 * row..4 * row + 4].iter().filter(|chosen| **chosen).count();
            assert_eq!([0, 1, 2, 3].map(of_row), [1, 1, 0, 0]);
            firsts.push(chosen[1]);
        }
        assert!(firsts.contains(&true) && firsts.contains(&false));
    }
}
