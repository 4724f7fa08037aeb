//! From rows to normalized rows.

use pulp::Simd;

use super::check;
use crate::arch::dispatch;
use crate::element::Element;
use crate::math::product_and_rest;
use crate::rows::check_length;
use crate::slices::{first_lanes, for_each_in_chains, for_each_vector, no_sums, total};

/// `y ← (x − mean) / √(variance + epsilon) · gamma + beta`, for each row, as long as `gamma` (Ba et al., "Layer Normalization", 2016). Also
/// gives each row's mean, and the factor 1 / √(variance + epsilon).
///
/// # Panics
/// If `beta` is not as long as `gamma`, `y` not as long as `x`, or `means` and `factors` do not have an element for each row.
pub fn layer_norm<T: Element>(
    x: &[T],
    gamma: &[f32],
    beta: Option<&[f32]>,
    epsilon: f32,
    y: &mut [T],
    means: &mut [f32],
    factors: &mut [f32],
) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, a: Affine<'_>, x: &[T], y: &mut [T], (means, factors): Of<'_>) {
        let statistics = means.iter_mut().zip(factors);
        let width = a.gamma.len().max(1);
        for ((x, y), (mean, factor)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(statistics) {
            let near = average(simd, x);
            let (off, exact) = inverse_deviation(simd, x, near, a.epsilon);
            // Of equal numbers the mean is the number itself, so that no deviation is left to be divided by next to nothing.
            *mean = (f64::from(near) + off) as f32;
            *factor = exact as f32;
            normalize(simd, x, a, *mean, exact, y);
        }
    }
    let affine = Affine::new(gamma, beta, epsilon);
    let statistics = [("means", means.len()), ("factors", factors.len())];
    check(factors.len(), gamma.len(), &[("x", x.len()), ("y", y.len())], &statistics);
    let of: Of<'_> = (means, factors);
    dispatch!(pass[T: Element](affine: Affine<'_>, x: &[T], y: &mut [T], of: Of<'_>) -> ());
}

/// `y ← x / √(mean of x² + epsilon) · gamma`, for each row, as long as `gamma` (Zhang and Sennrich, "Root Mean Square Layer Normalization",
/// 2019). Also gives the factor 1 / √(mean of x² + epsilon) of each row.
///
/// # Panics
/// If `y` is not as long as `x`, or `factors` does not have an element for each row.
pub fn rms_norm<T: Element>(x: &[T], gamma: &[f32], epsilon: f32, y: &mut [T], factors: &mut [f32]) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, a: Affine<'_>, x: &[T], y: &mut [T], factors: &mut [f32]) {
        let width = a.gamma.len().max(1);
        for ((x, y), factor) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(factors) {
            let exact = inverse_root(simd, x, a.epsilon);
            *factor = exact as f32;
            normalize(simd, x, a, 0.0, exact, y);
        }
    }
    let affine = Affine::new(gamma, None, epsilon);
    check(factors.len(), gamma.len(), &[("x", x.len()), ("y", y.len())], &[]);
    dispatch!(pass[T: Element](affine: Affine<'_>, x: &[T], y: &mut [T], factors: &mut [f32]) -> ());
}

/// Means and factors of rows.
type Of<'a> = (&'a mut [f32], &'a mut [f32]);

/// What is the same for all rows.
#[derive(Clone, Copy)]
struct Affine<'a> {
    gamma: &'a [f32],
    beta: Option<&'a [f32]>,
    epsilon: f32,
}

impl<'a> Affine<'a> {
    fn new(gamma: &'a [f32], beta: Option<&'a [f32]>, epsilon: f32) -> Self {
        if let Some(beta) = beta {
            check_length("beta", beta.len(), gamma.len());
        }
        Self { gamma, beta, epsilon }
    }
}

#[inline(always)]
fn average<S: Simd, T: Element>(simd: S, x: &[T]) -> f32 {
    let mut sums = no_sums(simd);
    for_each_in_chains(
        simd,
        x,
        #[inline(always)]
        |chain, x| sums[chain] = simd.add_f32s(sums[chain], T::load(simd, x)),
    );
    (f64::from(total(simd, sums)) / x.len() as f64) as f32
}

/// What `mean`, which is rounded, is below the mean, and 1 / √(variance + epsilon).
#[inline(always)]
fn inverse_deviation<S: Simd, T: Element>(simd: S, x: &[T], mean: f32, epsilon: f32) -> (f64, f64) {
    let (mut sums, mut squares) = (no_sums(simd), no_sums(simd));
    let mean = simd.splat_f32s(mean);
    for_each_in_chains(
        simd,
        x,
        #[inline(always)]
        |chain, x| {
            let deviation = first_lanes(simd, x.len(), simd.sub_f32s(T::load(simd, x), mean), 0.0);
            sums[chain] = simd.add_f32s(sums[chain], deviation);
            squares[chain] = simd.mul_add_f32s(deviation, deviation, squares[chain]);
        },
    );
    let width = x.len() as f64;
    let off = f64::from(total(simd, sums)) / width;
    let variance = f64::from(total(simd, squares)) / width - off * off;
    // Of equal numbers it may be just below zero, by rounding; what is not a number stays so.
    let variance = if variance < 0.0 { 0.0 } else { variance };
    (off, 1.0 / (variance + f64::from(epsilon)).sqrt())
}

/// 1 / √(mean of x² + epsilon).
#[inline(always)]
fn inverse_root<S: Simd, T: Element>(simd: S, x: &[T], epsilon: f32) -> f64 {
    let mut squares = no_sums(simd);
    for_each_in_chains(
        simd,
        x,
        #[inline(always)]
        |chain, x| {
            let x = T::load(simd, x);
            squares[chain] = simd.mul_add_f32s(x, x, squares[chain]);
        },
    );
    1.0 / (f64::from(total(simd, squares)) / x.len() as f64 + f64::from(epsilon)).sqrt()
}

#[inline(always)]
fn normalize<S: Simd, T: Element>(simd: S, x: &[T], a: Affine<'_>, mean: f32, factor: f64, y: &mut [T]) {
    let rest = simd.splat_f32s((factor - f64::from(factor as f32)) as f32);
    let (mean, factor) = (simd.splat_f32s(mean), simd.splat_f32s(factor as f32));
    let Some(beta) = a.beta else {
        for_each_vector(
            simd,
            ((x, a.gamma), y),
            #[inline(always)]
            |((x, gamma), y)| {
                let (normal, rest) = product(simd, simd.sub_f32s(T::load(simd, x), mean), factor, rest);
                let gamma = f32::load(simd, gamma);
                T::store(simd, y, simd.mul_add_f32s(normal, gamma, simd.mul_f32s(rest, gamma)));
            },
        );
        return;
    };
    for_each_vector(
        simd,
        (((x, a.gamma), beta), y),
        #[inline(always)]
        |(((x, gamma), beta), y)| {
            let (normal, rest) = product(simd, simd.sub_f32s(T::load(simd, x), mean), factor, rest);
            let (gamma, beta) = (f32::load(simd, gamma), f32::load(simd, beta));
            T::store(simd, y, simd.mul_add_f32s(normal, gamma, simd.mul_add_f32s(rest, gamma, beta)));
        },
    );
}

/// The product of a deviation and a factor that is a sum of two numbers, as a sum of two numbers.
#[inline(always)]
fn product<S: Simd>(simd: S, deviation: S::f32s, factor: S::f32s, rest: S::f32s) -> (S::f32s, S::f32s) {
    let (normal, off) = product_and_rest(simd, deviation, factor);
    (normal, simd.mul_add_f32s(deviation, rest, off))
}
