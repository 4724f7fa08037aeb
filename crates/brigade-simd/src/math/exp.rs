//! The exponential function.

use pulp::Simd;

use super::{LN_2_HIGH, LN_2_LOW, polynomial};

/// Beyond these, the exponential (and its product with the argument) is zero or infinite in `f32`.
const LOWEST: f32 = -110.0;
const HIGHEST: f32 = 89.0;

/// Adding it rounds a small number to an integer, which then stands in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;

/// (e^r − 1 − r) / r², for |r| ≤ ln 2 / 2.
const COEFFICIENTS: [f32; 5] =
    [4.999_999_4e-1, 1.666_651_5e-1, 4.166_808_7e-2, 8.369_273_5e-3, 1.383_731_5e-3];

/// An exponential before its last rounding: (1 + `fraction`) · `powers.0` · `powers.1`. What else the result is to be multiplied
/// by can come before the second power of two, which alone may round to a subnormal number.
pub(crate) struct Exponential<F> {
    pub(crate) fraction: F,
    pub(crate) powers: (F, F),
}

/// e^(`x` + `low`), where `low` is a correction of about `x`'s rounding error.
#[inline(always)]
pub(crate) fn exponential<S: Simd>(simd: S, x: S::f32s, low: S::f32s) -> Exponential<S::f32s> {
    let (lowest, highest) = (simd.splat_f32s(LOWEST), simd.splat_f32s(HIGHEST));
    // In this form NaN stays.
    let x = simd.select_f32s(simd.less_than_f32s(x, lowest), lowest, x);
    let x = simd.select_f32s(simd.greater_than_f32s(x, highest), highest, x);
    bounded_exponential(simd, x, low)
}

/// As [`exponential`], for `x` from −160 to 89, or not-a-number.
#[inline(always)]
pub(crate) fn bounded_exponential<S: Simd>(simd: S, x: S::f32s, low: S::f32s) -> Exponential<S::f32s> {
    let rounder = simd.splat_f32s(ROUNDER);
    let rounded = simd.mul_add_f32s(x, simd.splat_f32s(std::f32::consts::LOG2_E), rounder);
    let exponent = simd.sub_f32s(rounded, rounder);
    // x + low, less a multiple of ln 2, as a sum of two numbers.
    let high = simd.mul_add_f32s(exponent, simd.splat_f32s(-LN_2_HIGH), x);
    let low = simd.mul_add_f32s(exponent, simd.splat_f32s(-LN_2_LOW), low);
    let r = simd.add_f32s(high, low);
    let rest = simd.add_f32s(simd.sub_f32s(high, r), low);
    let squares = simd.mul_add_f32s(simd.mul_f32s(r, r), polynomial(simd, r, COEFFICIENTS), rest);
    let fraction = simd.add_f32s(r, squares);
    // The exponent in two halves, each with a bias of 127.
    let bias = simd.splat_u32s(254u32.wrapping_sub(ROUNDER.to_bits()));
    let biased = simd.add_u32s(simd.transmute_u32s_f32s(rounded), bias);
    let half = simd.wrapping_dyn_shr_u32s(biased, simd.splat_u32s(1));
    let powers = (power_of_two(simd, half), power_of_two(simd, simd.sub_u32s(biased, half)));
    Exponential { fraction, powers }
}

/// The power of two that has these bits as its biased exponent.
#[inline(always)]
fn power_of_two<S: Simd>(simd: S, biased: S::u32s) -> S::f32s {
    simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(biased, simd.splat_u32s(f32::MANTISSA_DIGITS - 1)))
}

/// The exponential function of each lane, at most 2 units in the last place from the true value.
#[inline(always)]
pub fn exp_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let Exponential { fraction, powers } = exponential(simd, x, simd.splat_f32s(0.0));
    let mantissa = simd.add_f32s(fraction, simd.splat_f32s(1.0));
    simd.mul_f32s(simd.mul_f32s(mantissa, powers.0), powers.1)
}
