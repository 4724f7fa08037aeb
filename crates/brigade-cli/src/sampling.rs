//! Sampling the next token from logits.

use anyhow::bail;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Samples tokens; the same seed and logits give the same tokens.
pub struct TokenSampler {
    generator: ChaCha8Rng,
    temperature: f64,
    top_k: usize,
}

impl TokenSampler {
    /// Logits are divided by `temperature` (0 always takes the most likely token), and only the `top_k` most likely tokens are
    /// sampled from (0: all).
    pub fn new(seed: u64, temperature: f64, top_k: usize) -> Self {
        Self { generator: ChaCha8Rng::seed_from_u64(seed), temperature, top_k }
    }

    /// Samples an index of `logits`, by the softmax over the `top_k` of them.
    pub fn choose(&mut self, logits: &[f32]) -> anyhow::Result<u32> {
        if logits.iter().any(|logit| logit.is_nan()) {
            bail!("the model's logits are not numbers; its weights are broken");
        }
        let mut best: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| f64::from(*logit))).collect();
        // Ties are broken by index, so that the order is deterministic.
        best.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
        let Some(&(first, highest)) = best.first() else { bail!("the model has no tokens") };
        if self.temperature == 0.0 {
            return Ok(first);
        }
        if self.top_k > 0 {
            best.truncate(self.top_k);
        }
        let weights = best.iter().map(|(_, logit)| ((logit - highest) / self.temperature).exp());
        let sums: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                Some({
                    *sum += weight;
                    *sum
                })
            })
            .collect();
        let drawn = self.uniform() * sums.last().copied().unwrap_or_default();
        let index = sums.partition_point(|sum| *sum <= drawn).min(best.len() - 1);
        Ok(best[index].0)
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

    fn counts(temperature: f64, top_k: usize) -> [usize; 4] {
        let mut sampler = TokenSampler::new(1, temperature, top_k);
        let mut counts = [0; 4];
        (0..2000).for_each(|_| counts[sampler.choose(&LOGITS).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let [a, b, c, d] = counts(1.0, 0);
        // e^-3 / (2 + e^-3) is 2.4%.
        assert!((20..90).contains(&a) && (850..1100).contains(&b) && (850..1100).contains(&c), "{a} {b} {c}");
        assert_eq!(d, 0);
        let [a, b, ..] = counts(1.0, 2);
        assert!(a == 0 && b > 850);
    }

    #[test]
    fn the_most_likely_token_at_temperature_0() {
        assert_eq!(counts(0.0, 0), [0, 2000, 0, 0]);
        assert_eq!(counts(1.0, 1), [0, 2000, 0, 0]);
    }

    #[test]
    fn the_seed_decides() {
        let draw = |seed| {
            let mut sampler = TokenSampler::new(seed, 1.0, 0);
            (0..50).map(|_| sampler.choose(&LOGITS).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }

    #[test]
    fn logits_that_are_not_numbers_are_an_error() {
        assert!(TokenSampler::new(0, 1.0, 0).choose(&[0.0, f32::NAN]).is_err());
        assert!(TokenSampler::new(0, 1.0, 0).choose(&[]).is_err());
    }
}
