//! What happens to the rows of a tile of scores between its products.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::TILE;
use crate::arch::{arch, dispatch};
use crate::math::exp_f32s;
use crate::slices::Slices;
use crate::{Element, convert, multiply};

/// Scores to the numerators of a running softmax: raises each row's highest score so far to that of this tile, scales what was summed and `mixed` with
/// the lower one, replaces scores by `exp(score - highest)`, 0 where a key is not seen, and adds them up. The numerators are [`super::rounded`].
pub(super) fn softmax_tile<T: Element>(
    scores: &mut [f32],
    [rows, columns]: [usize; 2],
    visible: impl Fn(usize) -> Range<usize>,
    mixed: &mut [f32],
    highest: &mut [f32; TILE],
    sums: &mut [f32; TILE],
) {
    struct Softmax<'a, V, T> {
        scores: &'a mut [f32],
        columns: usize,
        visible: V,
        mixed: &'a mut [f32],
        highest: &'a mut [f32],
        sums: &'a mut [f32],
        number: PhantomData<T>,
    }
    impl<V: Fn(usize) -> Range<usize>, T: Element> WithSimd for Softmax<'_, V, T> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let depth = self.mixed.len() / self.highest.len();
            for (row, scores) in self.scores.chunks_exact_mut(self.columns).enumerate() {
                let seen = (self.visible)(row);
                if seen.is_empty() {
                    scores.fill(0.0);
                    continue;
                }
                let before = self.highest[row];
                let now = before.max(max(simd, &scores[seen.clone()]));
                // So far all may be minus infinity: nothing to sum, and nothing to take away.
                let shift = if now == f32::NEG_INFINITY { 0.0 } else { now };
                let rescaled = exp_one(simd, before - shift);
                let sum = exp_sum::<S, T>(simd, scores, seen.clone(), shift);
                clear_unseen::<T>(scores, &seen);
                if before != now {
                    scale(simd, &mut self.mixed[row * depth..][..depth], rescaled);
                }
                self.sums[row] = self.sums[row] * rescaled + sum;
                self.highest[row] = now;
            }
        }
    }
    let depth = mixed.len() / TILE;
    arch().dispatch(Softmax {
        scores: &mut scores[..rows * columns],
        columns,
        visible,
        mixed: &mut mixed[..rows * depth],
        highest: &mut highest[..rows],
        sums: &mut sums[..rows],
        number: PhantomData::<T>,
    });
}

/// Scores to probabilities, and gradients of probabilities to those of scores: `p ← exp(s - logarithm)`, `g ← p · (g - mean) · scale`; both 0 where a key
/// is not seen. Both are [`super::rounded`].
pub(super) fn gradient_tile<T: Element>(
    scores: &mut [f32],
    slopes: &mut [f32],
    [rows, columns]: [usize; 2],
    visible: impl Fn(usize) -> Range<usize>,
    logarithms: &[f32],
    means: &[f32; TILE],
    scale: f32,
) {
    struct Gradient<'a, V, T> {
        scores: &'a mut [f32],
        slopes: &'a mut [f32],
        columns: usize,
        visible: V,
        logarithms: &'a [f32],
        means: &'a [f32],
        scale: f32,
        number: PhantomData<T>,
    }
    impl<V: Fn(usize) -> Range<usize>, T: Element> WithSimd for Gradient<'_, V, T> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let scale = simd.splat_f32s(self.scale);
            let rows =
                self.scores.chunks_exact_mut(self.columns).zip(self.slopes.chunks_exact_mut(self.columns));
            for (row, (scores, slopes)) in rows.enumerate() {
                let seen = (self.visible)(row);
                let logarithm = simd.splat_f32s(self.logarithms[row]);
                let mean = simd.splat_f32s(self.means[row]);
                for part in parts::<S>(&seen) {
                    let s = f32::load(simd, &scores[part.clone()]);
                    let g = f32::load(simd, &slopes[part.clone()]);
                    let (p, d_s) = slope(simd, (s, g), [logarithm, mean, scale]);
                    T::store(simd, &mut bytemuck::cast_slice_mut(scores)[part.clone()], p);
                    T::store(simd, &mut bytemuck::cast_slice_mut(slopes)[part], d_s);
                }
                clear_unseen::<T>(scores, &seen);
                clear_unseen::<T>(slopes, &seen);
            }
        }
    }
    arch().dispatch(Gradient {
        scores: &mut scores[..rows * columns],
        slopes: &mut slopes[..rows * columns],
        columns,
        visible,
        logarithms,
        means,
        scale,
        number: PhantomData::<T>,
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

/// The parts of a row that fill a register, and the rest. Numbers of a row that are no wider than those read take the place of these, from the first on.
#[inline(always)]
fn parts<S: Simd>(row: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<S> {
    let Range { start, end } = *row;
    (start..end).step_by(S::F32_LANES).map(move |from| from..(from + S::F32_LANES).min(end))
}

/// Zeros where a row of `T` is not seen.
#[inline(always)]
fn clear_unseen<T: Element>(row: &mut [f32], seen: &Range<usize>) {
    let columns = row.len();
    let row: &mut [T] = &mut bytemuck::cast_slice_mut(row)[..columns];
    row[..seen.start].fill(T::ZERO);
    row[seen.end..].fill(T::ZERO);
}

/// `output ← factor · mixed / sum`, or 0 where nothing was summed.
pub(super) fn normalize<T: Element>(mixed: &mut [f32], sum: f32, factor: f32, output: &mut [T]) {
    multiply(mixed, if sum == 0.0 { 0.0 } else { factor / sum });
    convert(mixed, output);
}

/// `Σ a · b`.
pub(super) fn dot<T: Element>(a: &[T], b: &[T]) -> f32 {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, a: &[T], b: &[T]) -> f32 {
        let (body, tail) = (a, b).vectors(S::F32_LANES);
        let mut sum = simd.mul_f32s(T::load(simd, tail.0), T::load(simd, tail.1));
        for (a, b) in body {
            sum = simd.mul_add_e_f32s(T::load(simd, a), T::load(simd, b), sum);
        }
        simd.reduce_sum_f32s(sum)
    }
    dispatch!(pass[T: Element](a: &[T], b: &[T]) -> f32)
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

/// Replaces each value that is seen by `exp(value - shift)`, as `T`, and adds them up.
#[inline(always)]
fn exp_sum<S: Simd, T: Element>(simd: S, row: &mut [f32], seen: Range<usize>, shift: f32) -> f32 {
    let shift = simd.splat_f32s(shift);
    let (mut sum, mut rest) = (simd.splat_f32s(0.0), 0.0);
    for part in parts::<S>(&seen) {
        let value = exp_f32s(simd, simd.sub_f32s(f32::load(simd, &row[part.clone()]), shift));
        if part.len() == S::F32_LANES {
            sum = simd.add_f32s(sum, value);
        } else {
            let mut last = [0.0; 16];
            let last = &mut last[..part.len()];
            f32::store(simd, last, value);
            rest = last.iter().sum();
        }
        T::store(simd, &mut bytemuck::cast_slice_mut(row)[part], value);
    }
    simd.reduce_sum_f32s(sum) + rest
}

#[inline(always)]
fn exp_one<S: Simd>(simd: S, value: f32) -> f32 {
    let [mut result] = [0.0];
    simd.partial_store_f32s(std::slice::from_mut(&mut result), exp_f32s(simd, simd.splat_f32s(value)));
    result
}

#[inline(always)]
fn scale<S: Simd>(simd: S, values: &mut [f32], factor: f32) {
    let (body, tail) = S::as_mut_simd_f32s(values);
    let by = simd.splat_f32s(factor);
    for value in body {
        *value = simd.mul_f32s(*value, by);
    }
    tail.iter_mut().for_each(|value| *value *= factor);
}
