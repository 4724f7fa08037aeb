//! What happens to the rows of a tile of scores between its products.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::TILE;
use crate::math::exp_f32s;

/// Scores to the numerators of a running softmax: raises each row's highest score so far to that of this tile, scales what was summed and `mixed` with
/// the lower one, replaces scores by `exp(score - highest)`, 0 where a key is not seen, and adds them up.
pub(super) fn softmax_tile(
    scores: &mut [f32],
    [rows, columns]: [usize; 2],
    visible: impl Fn(usize) -> Range<usize>,
    mixed: &mut [f32],
    highest: &mut [f32; TILE],
    sums: &mut [f32; TILE],
) {
    struct Softmax<'a, V> {
        scores: &'a mut [f32],
        columns: usize,
        visible: V,
        mixed: &'a mut [f32],
        highest: &'a mut [f32],
        sums: &'a mut [f32],
    }
    impl<V: Fn(usize) -> Range<usize>> WithSimd for Softmax<'_, V> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let depth = self.mixed.len() / self.highest.len();
            for (row, scores) in self.scores.chunks_exact_mut(self.columns).enumerate() {
                let seen = (self.visible)(row);
                scores[..seen.start].fill(0.0);
                scores[seen.end..].fill(0.0);
                if seen.is_empty() {
                    continue;
                }
                let scores = &mut scores[seen];
                let before = self.highest[row];
                let now = before.max(max(simd, scores));
                let rescaled = exp_one(simd, before - now);
                let sum = exp_sum(simd, scores, now);
                if before != now {
                    multiply(simd, &mut self.mixed[row * depth..][..depth], rescaled);
                }
                self.sums[row] = self.sums[row] * rescaled + sum;
                self.highest[row] = now;
            }
        }
    }
    let depth = mixed.len() / TILE;
    Arch::new().dispatch(Softmax {
        scores: &mut scores[..rows * columns],
        columns,
        visible,
        mixed: &mut mixed[..rows * depth],
        highest: &mut highest[..rows],
        sums: &mut sums[..rows],
    });
}

/// Scores to probabilities, and gradients of probabilities to those of scores: `p ← exp(s - logarithm)`, `g ← p · (g - mean) · scale`; both 0 where a key
/// is not seen.
pub(super) fn gradient_tile(
    scores: &mut [f32],
    slopes: &mut [f32],
    [rows, columns]: [usize; 2],
    visible: impl Fn(usize) -> Range<usize>,
    logarithms: &[f32],
    means: &[f32; TILE],
    scale: f32,
) {
    struct Gradient<'a, V> {
        scores: &'a mut [f32],
        slopes: &'a mut [f32],
        columns: usize,
        visible: V,
        logarithms: &'a [f32],
        means: &'a [f32],
        scale: f32,
    }
    impl<V: Fn(usize) -> Range<usize>> WithSimd for Gradient<'_, V> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let scale = simd.splat_f32s(self.scale);
            let rows =
                self.scores.chunks_exact_mut(self.columns).zip(self.slopes.chunks_exact_mut(self.columns));
            for (row, (scores, slopes)) in rows.enumerate() {
                let seen = (self.visible)(row);
                for values in [&mut *scores, &mut *slopes] {
                    values[..seen.start].fill(0.0);
                    values[seen.end..].fill(0.0);
                }
                let (scores, slopes) = (&mut scores[seen.clone()], &mut slopes[seen]);
                let logarithm = simd.splat_f32s(self.logarithms[row]);
                let mean = simd.splat_f32s(self.means[row]);
                let (s_body, s_tail) = S::as_mut_simd_f32s(scores);
                let (g_body, g_tail) = S::as_mut_simd_f32s(slopes);
                for (s, g) in s_body.iter_mut().zip(g_body) {
                    (*s, *g) = slope(simd, (*s, *g), [logarithm, mean, scale]);
                }
                if !s_tail.is_empty() {
                    let last = (simd.partial_load_f32s(s_tail), simd.partial_load_f32s(g_tail));
                    let (p, d_s) = slope(simd, last, [logarithm, mean, scale]);
                    simd.partial_store_f32s(s_tail, p);
                    simd.partial_store_f32s(g_tail, d_s);
                }
            }
        }
    }
    Arch::new().dispatch(Gradient {
        scores: &mut scores[..rows * columns],
        slopes: &mut slopes[..rows * columns],
        columns,
        visible,
        logarithms,
        means,
        scale,
    });
}

#[inline(always)]
fn slope<S: Simd>(
    simd: S,
    (s, g): (S::f32s, S::f32s),
    [logarithm, mean, scale]: [S::f32s; 3],
) -> (S::f32s, S::f32s) {
    let p = exp_f32s(simd, simd.sub_f32s(s, logarithm));
    (p, simd.mul_f32s(simd.mul_f32s(p, simd.sub_f32s(g, mean)), scale))
}

/// `output ← mixed / sum`, or 0 where nothing was summed.
pub(super) fn normalize(mixed: &[f32], sum: f32, output: &mut [f32]) {
    // All that was seen may be minus infinity, whose softmax is no number.
    let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
    output.iter_mut().zip(mixed).for_each(|(output, mixed)| *output = mixed * factor);
}

/// `Σ a · b`.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    struct Dot<'a>(&'a [f32], &'a [f32]);
    impl WithSimd for Dot<'_> {
        type Output = f32;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let (a_body, a_tail) = S::as_simd_f32s(self.0);
            let (b_body, b_tail) = S::as_simd_f32s(self.1);
            let mut sum = simd.mul_f32s(simd.partial_load_f32s(a_tail), simd.partial_load_f32s(b_tail));
            for (a, b) in a_body.iter().zip(b_body) {
                sum = simd.mul_add_e_f32s(*a, *b, sum);
            }
            simd.reduce_sum_f32s(sum)
        }
    }
    Arch::new().dispatch(Dot(a, b))
}

#[inline(always)]
fn max<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let (body, tail) = S::as_simd_f32s(values);
    let mut highest = simd.splat_f32s(f32::NEG_INFINITY);
    for value in body {
        highest = simd.max_f32s(highest, *value);
    }
    tail.iter().fold(simd.reduce_max_f32s(highest), |highest, value| highest.max(*value))
}

/// Replaces each value by `exp(value - shift)`, and adds them up.
#[inline(always)]
fn exp_sum<S: Simd>(simd: S, values: &mut [f32], shift: f32) -> f32 {
    let shift = simd.splat_f32s(shift);
    let (body, tail) = S::as_mut_simd_f32s(values);
    let mut sum = simd.splat_f32s(0.0);
    for value in body {
        *value = exp_f32s(simd, simd.sub_f32s(*value, shift));
        sum = simd.add_f32s(sum, *value);
    }
    let mut total = simd.reduce_sum_f32s(sum);
    if !tail.is_empty() {
        let last = exp_f32s(simd, simd.sub_f32s(simd.partial_load_f32s(tail), shift));
        simd.partial_store_f32s(tail, last);
        total += tail.iter().sum::<f32>();
    }
    total
}

#[inline(always)]
fn exp_one<S: Simd>(simd: S, value: f32) -> f32 {
    let [mut result] = [0.0];
    simd.partial_store_f32s(std::slice::from_mut(&mut result), exp_f32s(simd, simd.splat_f32s(value)));
    result
}

#[inline(always)]
fn multiply<S: Simd>(simd: S, values: &mut [f32], factor: f32) {
    let (body, tail) = S::as_mut_simd_f32s(values);
    let by = simd.splat_f32s(factor);
    for value in body {
        *value = simd.mul_f32s(*value, by);
    }
    tail.iter_mut().for_each(|value| *value *= factor);
}
