//! From gradients of normalized rows to those of rows.

use pulp::Simd;

use super::check;
use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::{ColumnSums, accumulate, accumulate_product, check_length};
use crate::slices::{for_each_in_chains, for_each_vector, no_sums, total};

/// The gradient of [`layer_norm`](super::layer_norm)'s input, `x`, into `d_x`, from that of its output and what it gave with it. Adds those of
/// gamma and beta to `d_gamma` and `d_beta`.
///
/// # Panics
/// If `gradient` or `d_x` is not as long as `x`, `d_gamma` or `d_beta` not as long as `gamma`, or `means` and `factors` do not have an element for
/// each row.
#[expect(clippy::too_many_arguments, reason = "one pass over all of them")]
pub fn layer_norm_backward<T: Element>(
    gradient: &[T],
    x: &[T],
    means: &[f32],
    factors: &[f32],
    gamma: &[f32],
    d_x: &mut [T],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
) {
    check_length("means", means.len(), factors.len());
    check_length("d_beta", d_beta.len(), gamma.len());
    let saved = Saved { gradient, x, means: Some(means), factors, gamma };
    backward(saved, d_x, d_gamma, Some(d_beta));
}

/// The gradient of [`rms_norm`](super::rms_norm)'s input, `x`, into `d_x`, from that of its output and what it gave with it. Adds that of gamma
/// to `d_gamma`.
///
/// # Panics
/// If `gradient` or `d_x` is not as long as `x`, `d_gamma` not as long as `gamma`, or `factors` does not have an element for each row.
pub fn rms_norm_backward<T: Element>(
    gradient: &[T],
    x: &[T],
    factors: &[f32],
    gamma: &[f32],
    d_x: &mut [T],
    d_gamma: &mut [f32],
) {
    backward(Saved { gradient, x, means: None, factors, gamma }, d_x, d_gamma, None);
}

/// What the backward pass reads.
#[derive(Clone, Copy)]
struct Saved<'a, T> {
    gradient: &'a [T],
    x: &'a [T],
    /// Of layer norms.
    means: Option<&'a [f32]>,
    factors: &'a [f32],
    gamma: &'a [f32],
}

/// A row of it.
#[derive(Clone, Copy)]
struct Row<'a, T> {
    gradient: &'a [T],
    x: &'a [T],
    mean: f32,
    factor: f32,
    gamma: &'a [f32],
}

fn backward<T: Element>(saved: Saved<'_, T>, d_x: &mut [T], d_gamma: &mut [f32], d_beta: Option<&mut [f32]>) {
    let elements = [("gradient", saved.gradient.len()), ("x", saved.x.len()), ("d_x", d_x.len())];
    check(saved.factors.len(), saved.gamma.len(), &elements, &[]);
    check_length("d_gamma", d_gamma.len(), saved.gamma.len());
    type Sums<'a> = Option<&'a mut [f32]>;
    dispatch!(pass[T: Element](saved: Saved<'_, T>, d_x: &mut [T], d_gamma: &mut [f32], d_beta: Sums<'_>) -> ());
}

#[inline(always)]
fn pass<S: Simd, T: Element>(
    simd: S,
    saved: Saved<'_, T>,
    d_x: &mut [T],
    d_gamma: &mut [f32],
    d_beta: Option<&mut [f32]>,
) {
    let gamma = saved.gamma;
    let width = gamma.len().max(1);
    let (mut gammas, mut betas) = (ColumnSums::new(gamma.len()), ColumnSums::new(gamma.len()));
    let rows = saved.gradient.chunks_exact(width).zip(saved.x.chunks_exact(width));
    for (index, ((gradient, x), d_x)) in rows.zip(d_x.chunks_exact_mut(width)).enumerate() {
        let mean = saved.means.map_or(0.0, |means| means[index]);
        let row = Row { gradient, x, mean, factor: saved.factors[index], gamma };
        if d_beta.is_some() {
            let (of_gradient, of_product) = layer_sums(simd, row, gammas.block(), betas.block());
            input_gradient(simd, row, of_gradient, of_product, d_x);
            betas.end_row();
        } else {
            let of_product = rms_sums(simd, row, gammas.block());
            input_gradient(simd, row, 0.0, of_product, d_x);
        }
        gammas.end_row();
    }
    gammas.add_to(d_gamma);
    if let Some(d_beta) = d_beta {
        betas.add_to(d_beta);
    }
}

/// The means of gradient · gamma, and of its product with the normalized row. Adds the row's part of gamma's and beta's gradients.
#[inline(always)]
fn layer_sums<S: Simd, T: Element>(
    simd: S,
    row: Row<'_, T>,
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
) -> (f64, f64) {
    let (mut of_gradient, mut of_product) = (no_sums(simd), no_sums(simd));
    let (mean, factor) = (simd.splat_f32s(row.mean), simd.splat_f32s(row.factor));
    for_each_in_chains(
        simd,
        (((row.gradient, row.x), row.gamma), (d_gamma, d_beta)),
        #[inline(always)]
        |chain, (((gradient, x), gamma), (d_gamma, d_beta))| {
            let gradient = T::load(simd, gradient);
            let normal = simd.mul_f32s(simd.sub_f32s(T::load(simd, x), mean), factor);
            accumulate(simd, d_beta, gradient);
            accumulate_product(simd, d_gamma, gradient, normal);
            let scaled = simd.mul_f32s(gradient, f32::load(simd, gamma));
            of_gradient[chain] = simd.add_f32s(of_gradient[chain], scaled);
            of_product[chain] = simd.mul_add_f32s(scaled, normal, of_product[chain]);
        },
    );
    let width = row.x.len() as f64;
    (f64::from(total(simd, of_gradient)) / width, f64::from(total(simd, of_product)) / width)
}

/// The mean of gradient · gamma times the normalized row. Adds the row's part of gamma's gradient.
#[inline(always)]
fn rms_sums<S: Simd, T: Element>(simd: S, row: Row<'_, T>, d_gamma: &mut [f32]) -> f64 {
    let mut of_product = no_sums(simd);
    let factor = simd.splat_f32s(row.factor);
    for_each_in_chains(
        simd,
        (((row.gradient, row.x), row.gamma), d_gamma),
        #[inline(always)]
        |chain, (((gradient, x), gamma), d_gamma)| {
            let gradient = T::load(simd, gradient);
            let normal = simd.mul_f32s(T::load(simd, x), factor);
            accumulate_product(simd, d_gamma, gradient, normal);
            let scaled = simd.mul_f32s(gradient, f32::load(simd, gamma));
            of_product[chain] = simd.mul_add_f32s(scaled, normal, of_product[chain]);
        },
    );
    f64::from(total(simd, of_product)) / row.x.len() as f64
}

/// `d_x ← factor · (gradient · gamma − of_gradient − of_product · normalized row)`.
#[inline(always)]
fn input_gradient<S: Simd, T: Element>(
    simd: S,
    row: Row<'_, T>,
    of_gradient: f64,
    of_product: f64,
    d_x: &mut [T],
) {
    let exact = f64::from(row.factor);
    let (mean, factor) = (simd.splat_f32s(row.mean), simd.splat_f32s(row.factor));
    let shift = simd.splat_f32s((exact * of_gradient) as f32);
    let slope = simd.splat_f32s((exact * exact * of_product) as f32);
    for_each_vector(
        simd,
        (((row.gradient, row.x), row.gamma), d_x),
        #[inline(always)]
        |(((gradient, x), gamma), d_x)| {
            let off = simd.mul_add_f32s(simd.sub_f32s(T::load(simd, x), mean), slope, shift);
            let scaled = simd.mul_f32s(T::load(simd, gradient), f32::load(simd, gamma));
            T::store(simd, d_x, simd.mul_add_f32s(scaled, factor, simd.sub_f32s(simd.splat_f32s(0.0), off)));
        },
    );
}
