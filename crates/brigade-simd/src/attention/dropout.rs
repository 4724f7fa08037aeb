//! Dropout of probabilities, as a function of their place.

use pulp::Simd;

use crate::Element;
use crate::arch::dispatch;

/// Dropout of the probabilities of an attention in training (Srivastava et al., "Dropout", 2014): each is dropped or kept by itself, as a function of the seed, the query and
/// the key; those that are kept grow in turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionDropout {
    /// How likely one is dropped: at least 0, and below 1.
    pub probability: f32,
    /// Decides which are.
    pub seed: u64,
}

impl AttentionDropout {
    /// What multiplies those that are kept.
    pub fn factor(self) -> f32 {
        1.0 / (1.0 - self.probability)
    }

    /// What multiplies the probabilities of one query of one head for consecutive keys from `first` on: 0 or the [`factor`](Self::factor). `row`: the number of the query among
    /// all, those of a head one after another.
    pub fn factors(self, row: usize, first: usize, factors: &mut [f32]) {
        #[inline(always)]
        fn pass<S: Simd>(_simd: S, key: [u32; 2], least: u32, kept: f32, factors: &mut [f32]) {
            for (index, factor) in (0..factors.len() as u32).zip(factors) {
                let drawn = scramble(scramble(key[0].wrapping_add(index)) ^ key[1]);
                *factor = if drawn < least { 0.0 } else { kept };
            }
        }
        let key = brigade_random::keyed(self.seed, row as u64);
        let key: [u32; 2] = [(key as u32).wrapping_add(first as u32), (key >> 32) as u32];
        let least = (f64::from(self.probability) * 2f64.powi(32)) as u32;
        let kept = self.factor();
        dispatch!(pass(key: [u32; 2], least: u32, kept: f32, factors: &mut [f32]) -> ());
    }

    /// The same of some queries, one after another.
    pub(super) fn tile(self, first_row: usize, first_key: usize, columns: usize, factors: &mut [f32]) {
        for (index, factors) in factors.chunks_exact_mut(columns).enumerate() {
            self.factors(first_row + index, first_key, factors);
        }
    }
}

/// A bijection of 32 bits in which every bit of the input changes every bit of the output with a probability near one half (Wellons, "Prospecting for Hash Functions", 2018).
#[inline(always)]
fn scramble(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Zeros where what is [`rounded`](super::rounded) is dropped.
pub(super) fn drop_tile<T: Element>(scores: &mut [f32], factors: &[f32], columns: usize) {
    for (row, factors) in scores.chunks_exact_mut(columns).zip(factors.chunks_exact(columns)) {
        let row: &mut [T] = bytemuck::cast_slice_mut(row);
        for (value, factor) in row.iter_mut().zip(factors) {
            *value = if *factor == 0.0 { T::ZERO } else { *value };
        }
    }
}
