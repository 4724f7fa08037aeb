//! Sampling the next token from logits, with the processors of `transformers` in their order: repetition penalty, temperature, the most likely tokens by number
//! (`top_k`), then by probability (`top_p`).

use std::collections::BTreeSet;

use anyhow::bail;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// How tokens are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingConfig {
    /// What logits are divided by; 0 always takes the most likely token.
    pub temperature: f64,
    /// How many of the most likely tokens are sampled from, with those that are as likely as the last of them; 0: all.
    pub top_k: usize,
    /// The most likely tokens that have this probability together are sampled from; 1: all.
    pub top_p: f64,
    /// What the logit of a token that is in the text already is divided by, or multiplied by if it is below 0; 1 changes nothing (Keskar et al., "CTRL", 2019).
    pub repetition_penalty: f64,
}

/// Samples tokens; the same seed, text and logits give the same tokens.
pub struct TokenSampler {
    generator: ChaCha8Rng,
    config: SamplingConfig,
    seen: BTreeSet<u32>,
}

impl TokenSampler {
    /// For a text that begins.
    pub fn new(seed: u64, config: SamplingConfig) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed), config, seen: BTreeSet::new() }
    }

    /// Takes note of tokens of the text.
    pub fn see(&mut self, tokens: &[u32]) {
        self.seen.extend(tokens);
    }

    /// Samples an index of `logits`.
    pub fn choose(&mut self, logits: &[f32]) -> anyhow::Result<u32> {
        let tokens = self.probabilities(logits)?;
        if let [(token, _)] = tokens.as_slice() {
            return Ok(*token);
        }
        let drawn = self.uniform() * tokens.iter().map(|(_, probability)| probability).sum::<f64>();
        let mut sum = 0.0;
        let found = tokens.iter().find(|(_, probability)| {
            sum += probability;
            sum > drawn
        });
        Ok(found.or(tokens.last()).map_or(0, |(token, _)| *token))
    }

    /// The tokens that may come, and how likely they are.
    fn probabilities(&self, logits: &[f32]) -> anyhow::Result<Vec<(u32, f64)>> {
        let SamplingConfig { temperature, top_k, top_p, repetition_penalty } = self.config;
        if logits.iter().any(|logit| logit.is_nan()) {
            bail!("the model's logits are not numbers; its weights are broken");
        }
        let mut scores: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| f64::from(*logit))).collect();
        for token in &self.seen {
            if let Some((_, score)) = scores.get_mut(*token as usize) {
                *score = if *score < 0.0 { *score * repetition_penalty } else { *score / repetition_penalty };
            }
        }
        // Of equal ones the first.
        let best = |best: (u32, f64), next: &(u32, f64)| if next.1 > best.1 { *next } else { best };
        let Some((first, rest)) = scores.split_first() else { bail!("the model has no tokens") };
        let (token, highest) = rest.iter().fold(*first, best);
        if temperature == 0.0 {
            return Ok(vec![(token, 1.0)]);
        }
        if (1..scores.len()).contains(&top_k) {
            let mut sorted: Vec<f64> = scores.iter().map(|(_, score)| *score).collect();
            let (_, last, _) = sorted.select_nth_unstable_by(top_k - 1, |a, b| b.total_cmp(a));
            let last = *last;
            scores.retain(|(_, score)| *score >= last);
        }
        scores.iter_mut().for_each(|(_, score)| *score = ((*score - highest) / temperature).exp());
        let total: f64 = scores.iter().map(|(_, weight)| weight).sum();
        if !(total.is_finite() && total > 0.0) {
            bail!("the model's logits are not finite; its weights are broken");
        }
        scores.iter_mut().for_each(|(_, weight)| *weight /= total);
        if top_p < 1.0 {
            scores.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
            let mut before = 0.0;
            let kept = scores.iter().take_while(|(_, probability)| {
                let is_in = before < top_p;
                before += probability;
                is_in
            });
            let kept = kept.count().max(1);
            scores.truncate(kept);
        }
        Ok(scores)
    }

    /// At least 0 and below 1, of 53 random bits.
    fn uniform(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 3.0, 3.0, f32::NEG_INFINITY];

    const ALL: SamplingConfig =
        SamplingConfig { temperature: 1.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };

    fn counts(config: SamplingConfig) -> [usize; 4] {
        let mut sampler = TokenSampler::new(1, config);
        let mut counts = [0; 4];
        (0..2000).for_each(|_| counts[sampler.choose(&LOGITS).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let [a, b, c, d] = counts(ALL);
        // e^-3 / (2 + e^-3) is 2.4%.
        assert!((20..90).contains(&a) && (850..1100).contains(&b) && (850..1100).contains(&c), "{a} {b} {c}");
        assert_eq!(d, 0);
        let [a, b, ..] = counts(SamplingConfig { top_k: 2, ..ALL });
        assert!(a == 0 && b > 850);
    }

    #[test]
    fn the_most_likely_token_at_temperature_0() {
        assert_eq!(counts(SamplingConfig { temperature: 0.0, ..ALL }), [0, 2000, 0, 0]);
        assert_eq!(counts(SamplingConfig { top_p: 0.3, ..ALL }), [0, 2000, 0, 0]);
    }

    /// What `transformers` 5.23 makes of these logits after a text of the tokens 4, 2, 4 and 7: softmax of RepetitionPenaltyLogitsProcessor,
    /// TemperatureLogitsWarper, TopKLogitsWarper and TopPLogitsWarper.
    #[test]
    fn probabilities_are_those_of_transformers() {
        const LOGITS: [f32; 8] = [2.0, 1.0, -1.0, 0.5, 3.0, 0.5, -2.0, 2.5];
        type Case = ((f64, f64, usize, f64), [f64; 8]);
        let cases: [Case; 6] = [
            (
                (1.3, 0.7, 0, 1.0),
                [0.2541611, 0.06091, 0.0022789, 0.029818, 0.3944644, 0.029818, 0.0008384, 0.2277113],
            ),
            ((1.3, 0.7, 4, 1.0), [0.2711785, 0.0649882, 0.0, 0.0, 0.4208757, 0.0, 0.0, 0.2429577]),
            ((1.3, 0.7, 0, 0.8), [0.2900268, 0.0, 0.0, 0.0, 0.4501288, 0.0, 0.0, 0.2598445]),
            ((1.3, 0.7, 5, 0.9), [0.2711785, 0.0649882, 0.0, 0.0, 0.4208757, 0.0, 0.0, 0.2429577]),
            ((0.8, 1.5, 3, 0.5), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
            // Two tokens are as likely as the fifth.
            (
                (1.0, 1.0, 5, 1.0),
                [0.1617824, 0.0595164, 0.0, 0.0360985, 0.4397701, 0.0360985, 0.0, 0.2667341],
            ),
        ];
        for ((repetition_penalty, temperature, top_k, top_p), expected) in cases {
            let config = SamplingConfig { temperature, top_k, top_p, repetition_penalty };
            let mut sampler = TokenSampler::new(0, config);
            sampler.see(&[4, 2, 4, 7]);
            let found = sampler.probabilities(&LOGITS).unwrap();
            let total: f64 = found.iter().map(|(_, probability)| probability).sum();
            for (token, expected) in (0..).zip(expected) {
                let found = found.iter().find(|(found, _)| *found == token).map_or(0.0, |(_, p)| p / total);
                assert!(
                    (found - expected).abs() < 1e-6,
                    "{config:?}: token {token} has {found}, not {expected}"
                );
            }
        }
        // The most likely token is one that is not in the text yet.
        let config = SamplingConfig { temperature: 0.0, repetition_penalty: 2.0, ..ALL };
        let mut sampler = TokenSampler::new(0, config);
        assert_eq!(sampler.choose(&LOGITS).unwrap(), 4);
        sampler.see(&[4, 2, 4, 7]);
        assert_eq!(sampler.choose(&LOGITS).unwrap(), 0);
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| {
            let mut sampler = TokenSampler::new(seed, ALL);
            (0..50).map(|_| sampler.choose(&LOGITS).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn logits_that_are_not_numbers_are_an_error() {
        assert!(TokenSampler::new(0, ALL).choose(&[0.0, f32::NAN]).is_err());
        assert!(TokenSampler::new(0, ALL).choose(&[f32::NEG_INFINITY; 2]).is_err());
        assert!(TokenSampler::new(0, ALL).choose(&[]).is_err());
    }
}
