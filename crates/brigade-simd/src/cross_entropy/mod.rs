//! The cross entropy of rows of logits, and its gradient.

#[cfg(test)]
mod tests;

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::math::{Exponential, exp_f32s, exponential, ln_f32s, sum_and_rest};
use crate::rows::check_length;
use crate::slices::{CHAINS, first_lanes, for_each_in_chains, for_each_vector, no_sums, total};

/// What is added to the cross entropy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Smoothing {
    /// ε, the share of the target's probability that all classes get equally (Szegedy et al., "Rethinking the Inception Architecture for Computer
    /// Vision", 2016); 0 for none.
    pub label_smoothing: f32,
    /// z, the factor of the square of the logarithm of the softmax' denominator (Chowdhery et al., "PaLM", 2022); 0 for none.
    pub z_loss: f32,
}

/// For each row of logits, as many as there are targets: with L the logarithm of the sum of all exponentials,
/// `loss = (1 − ε) (L − logit[target]) + ε (L − mean of logits) + z L²`, in nats; whether the target has the highest logit, 1 or 0 (of several that have it, the first
/// class counts, as in PyTorch's `argmax`); and L, the `logarithms`.
///
/// Where PyTorch's is not-a-number, so is the loss. A row whose target is below 0 is ignored: its outputs are 0.
///
/// # Panics
/// If `logits` is not whole rows, an output does not have an element for each row, or a target is above the last class.
pub fn cross_entropy<T: Element>(
    logits: &[T],
    targets: &[i64],
    smoothing: Smoothing,
    losses: &mut [f32],
    hits: &mut [f32],
    logarithms: &mut [f32],
) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(
        simd: S,
        logits: &[T],
        targets: &[i64],
        smoothing: Smoothing,
        (losses, hits, logarithms): Outputs<'_>,
    ) {
        let classes = logits.len() / targets.len().max(1);
        let outputs = losses.iter_mut().zip(hits).zip(logarithms);
        let rows = logits.chunks_exact(classes.max(1)).zip(targets);
        for (row, ((logits, target), ((loss, hit), logarithm))) in rows.zip(outputs).enumerate() {
            let Some(target) = class(row, *target, classes) else {
                (*loss, *hit, *logarithm) = (0.0, 0.0, 0.0);
                continue;
            };
            let chosen = logits[target].to_f32();
            let highest = highest(simd, logits);
            let sum = sum_of_exponentials(simd, logits, highest);
            // A register of one number: its highest is any of them.
            let above = f64::from(simd.reduce_max_f32s(ln_f32s(simd, simd.splat_f32s(sum))));
            let exact = f64::from(highest) + above;
            let entropy_of = |logit: f64| above + (f64::from(highest) - logit);
            let mut entropy = entropy_of(f64::from(chosen));
            if smoothing.label_smoothing != 0.0 {
                let share = f64::from(smoothing.label_smoothing);
                let mean = f64::from(sum_of(simd, logits)) / classes as f64;
                // Both may be infinite, and the first of them without weight.
                let of_target = if share < 1.0 { (1.0 - share) * entropy } else { 0.0 };
                entropy = of_target + share * entropy_of(mean);
            }
            *loss = (entropy + f64::from(smoothing.z_loss) * exact * exact) as f32;
            *hit = if chosen == highest && !sum.is_nan() && !has(&logits[..target], highest) {
                1.0
            } else {
                0.0
            };
            *logarithm = exact as f32;
        }
    }
    check_rows_of_classes(logits.len(), targets.len());
    check_length("losses", losses.len(), targets.len());
    check_length("hits", hits.len(), targets.len());
    check_length("logarithms", logarithms.len(), targets.len());
    let outputs: Outputs<'_> = (losses, hits, logarithms);
    dispatch!(pass[T: Element](
        logits: &[T], targets: &[i64], smoothing: Smoothing, outputs: Outputs<'_>
    ) -> ());
}

/// The gradient of the losses' sum, each times its row's scale, in place of the logits: with L one of the `logarithms` that
/// [`cross_entropy`] gave, `scale · ((1 + 2 z L) exp(logit − L) − (1 − ε) · [is target] − ε / classes)`; 0 in rows
/// whose target is below 0.
///
/// # Panics
/// If `logits` is not whole rows, `logarithms` or `scales` does not have an element for each row, or a target is above the last class.
pub fn cross_entropy_backward<T: Element>(
    logits: &mut [T],
    targets: &[i64],
    smoothing: Smoothing,
    logarithms: &[f32],
    scales: &[f32],
) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(
        simd: S,
        logits: &mut [T],
        targets: &[i64],
        smoothing: Smoothing,
        (logarithms, scales): (&[f32], &[f32]),
    ) {
        let classes = logits.len() / targets.len().max(1);
        let rows = logits.chunks_exact_mut(classes.max(1)).zip(targets).enumerate();
        for ((row, (logits, target)), (logarithm, scale)) in rows.zip(logarithms.iter().zip(scales)) {
            let Some(target) = class(row, *target, classes) else {
                logits.fill(T::ZERO);
                continue;
            };
            let factor = 1.0 + 2.0 * f64::from(smoothing.z_loss) * f64::from(*logarithm);
            let factor = (f64::from(*scale) * factor) as f32;
            let share = f64::from(smoothing.label_smoothing);
            let off = (f64::from(*scale) * share / classes as f64) as f32;
            // The target's alone is a difference of large numbers: made of its probability, as the others' are, before any rounding.
            let probability = exp_of_difference(simd, simd.splat_f32s(logits[target].to_f32()), *logarithm);
            let probability = f64::from(simd.reduce_max_f32s(probability));
            let of_target =
                f64::from(factor) * probability - f64::from(*scale) * (1.0 - share) - f64::from(off);
            scaled_softmax(simd, logits, *logarithm, factor, off);
            logits[target] = T::from_f32(of_target as f32);
        }
    }
    check_rows_of_classes(logits.len(), targets.len());
    check_length("logarithms", logarithms.len(), targets.len());
    check_length("scales", scales.len(), targets.len());
    let of_rows = (logarithms, scales);
    dispatch!(pass[T: Element](
        logits: &mut [T], targets: &[i64], smoothing: Smoothing, of_rows: (&[f32], &[f32])
    ) -> ());
}

/// Losses, hits and logarithms.
type Outputs<'a> = (&'a mut [f32], &'a mut [f32], &'a mut [f32]);

fn check_rows_of_classes(logits: usize, rows: usize) {
    assert!(
        if rows == 0 { logits == 0 } else { logits.is_multiple_of(rows) },
        "`logits` must be whole rows, one for each of {rows} targets, but has {logits} elements"
    );
}

/// The class of a row's target; none where the row is ignored.
#[inline]
fn class(row: usize, target: i64, classes: usize) -> Option<usize> {
    let class = usize::try_from(target).ok()?;
    assert!(class < classes, "`targets` has {target} in row {row}, which is none of {classes} classes");
    Some(class)
}

/// Whether one of these is that number. All are looked at, so that several are at once.
#[inline(always)]
fn has<T: Element>(logits: &[T], number: f32) -> bool {
    logits.iter().fold(false, |found, logit| found | (logit.to_f32() == number))
}

#[inline(always)]
fn highest<S: Simd, T: Element>(simd: S, logits: &[T]) -> f32 {
    let mut highest = [simd.splat_f32s(f32::NEG_INFINITY); CHAINS];
    for_each_in_chains(
        simd,
        logits,
        #[inline(always)]
        |chain, logits| {
            let values = first_lanes(simd, logits.len(), T::load(simd, logits), f32::NEG_INFINITY);
            highest[chain] = simd.max_f32s(highest[chain], values);
        },
    );
    let [a, b, c, d] = highest;
    simd.reduce_max_f32s(simd.max_f32s(simd.max_f32s(a, b), simd.max_f32s(c, d)))
}

#[inline(always)]
fn sum_of_exponentials<S: Simd, T: Element>(simd: S, logits: &[T], highest: f32) -> f32 {
    let mut sums = no_sums(simd);
    let highest = simd.splat_f32s(highest);
    for_each_in_chains(
        simd,
        logits,
        #[inline(always)]
        |chain, logits| {
            let values = exp_f32s(simd, simd.sub_f32s(T::load(simd, logits), highest));
            sums[chain] = simd.add_f32s(sums[chain], first_lanes(simd, logits.len(), values, 0.0));
        },
    );
    total(simd, sums)
}

#[inline(always)]
fn sum_of<S: Simd, T: Element>(simd: S, logits: &[T]) -> f32 {
    let mut sums = no_sums(simd);
    for_each_in_chains(
        simd,
        logits,
        #[inline(always)]
        |chain, logits| sums[chain] = simd.add_f32s(sums[chain], T::load(simd, logits)),
    );
    total(simd, sums)
}

/// e^(x − logarithm), without the difference's rounding.
#[inline(always)]
fn exp_of_difference<S: Simd>(simd: S, x: S::f32s, logarithm: f32) -> S::f32s {
    let (difference, rest) = sum_and_rest(simd, x, simd.splat_f32s(-logarithm));
    // Of an infinite difference there is no rest.
    let zero = simd.splat_f32s(0.0);
    let rest = simd.select_f32s(simd.greater_than_f32s(difference, simd.splat_f32s(f32::MIN)), rest, zero);
    let Exponential { fraction, powers } = exponential(simd, difference, rest);
    let mantissa = simd.add_f32s(fraction, simd.splat_f32s(1.0));
    simd.mul_f32s(simd.mul_f32s(mantissa, powers.0), powers.1)
}

/// `factor · exp(logit − logarithm) − off`, in place.
#[inline(always)]
fn scaled_softmax<S: Simd, T: Element>(simd: S, logits: &mut [T], logarithm: f32, factor: f32, off: f32) {
    let (factor, off) = (simd.splat_f32s(factor), simd.splat_f32s(-off));
    for_each_vector(
        simd,
        logits,
        #[inline(always)]
        |logits| {
            let probability = exp_of_difference(simd, T::load(simd, logits), logarithm);
            T::store(simd, logits, simd.mul_add_f32s(probability, factor, off));
        },
    );
}
