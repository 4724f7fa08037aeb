//! What tests compare with.

use brigade_random::mix;
use pulp::Arch;

use crate::element::Element;

/// The place of the last bit of a mantissa of `digits` bits, of numbers of the order of `magnitude`, in numbers with exponents like `f32`'s.
fn last_place(magnitude: f64, digits: u32) -> f64 {
    let order = (magnitude.abs().max(f64::from(f32::MIN_POSITIVE)).to_bits() >> 52) as i32 - 1023;
    2f64.powi(order + 1 - digits as i32)
}

/// How far `got` is from `truth`, in units of the last place of `f32` numbers of `truth`'s order.
pub(crate) fn units(got: f32, truth: f64) -> f64 {
    units_among(f64::from(got), truth, truth)
}

/// How far `got` is from `truth`, in units of the last place of `f32` numbers of the order of `magnitude`.
pub(crate) fn units_among(got: f64, truth: f64, magnitude: f64) -> f64 {
    if truth.is_nan() || got.is_nan() {
        return if truth.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    // Half a unit above the largest finite number, and everything beyond, is infinite.
    let truth = if (truth as f32).is_infinite() { f64::from(truth as f32) } else { truth };
    if truth.is_infinite() || got.is_infinite() {
        return if got == truth { 0.0 } else { f64::INFINITY };
    }
    (got - truth).abs() / last_place(magnitude, f32::MANTISSA_DIGITS)
}

/// How far `got` is from `truth`, in units of the last place of `T`'s numbers of the order of `magnitude`.
pub(crate) fn distance<T: Element>(got: T, truth: f64, magnitude: f64) -> f64 {
    let digits = if size_of::<T>() == 4 { f32::MANTISSA_DIGITS } else { half::bf16::MANTISSA_DIGITS };
    (f64::from(got.to_f32()) - truth).abs() / last_place(magnitude, digits)
}

/// How many units of the last place a sum along a row may be off. Without SIMD it has four chains of additions instead of 32 and more.
pub(crate) fn limit(kind: Arch) -> f64 {
    if matches!(kind, Arch::Scalar) { 5.0 } else { 2.5 }
}

/// Numbers between `-range` and `range`, some of them zero.
pub(crate) fn numbers<T: Element>(count: usize, seed: u64, range: f32) -> Vec<T> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(state) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|i| T::from_f32(if i % 29 == 17 { 0.0 } else { next() * range })).collect()
}
