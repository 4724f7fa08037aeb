//! Elementary functions, at most 2 units in the last place from the true value over all of `f32`, with the true function's values at
//! the edges: zeros keep their sign where it has one, results too large are infinite, results too small are
//! subnormal or zero, and not-a-number stays one.
//!
//! Each function comes as a pass over a slice, and as a function of a register for other kernels. Coefficients without a named
//! source are minimax polynomials by Remez' exchange algorithm, rounded to `f32`.

mod erf;
mod exp;
mod ln;
mod logistic;
#[cfg(test)]
mod tests;

use pulp::Simd;

pub use erf::erf_f32s;
pub use exp::exp_f32s;
pub(crate) use exp::{Exponential, bounded_exponential, exponential};
pub use ln::ln_f32s;
pub use logistic::{sigmoid_f32s, tanh_f32s};

use crate::arch::dispatch;
use crate::element::Element;
use crate::slices::for_each_vector;

/// ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
const LN_2_HIGH: f32 = f32::from_bits(0x3f31_7200);
const LN_2_LOW: f32 = 1.428_606_8e-6;

/// A polynomial at `x`, by Horner's rule; the coefficients stand in the order of rising powers.
#[inline(always)]
pub(crate) fn polynomial<S: Simd, const N: usize>(simd: S, x: S::f32s, coefficients: [f32; N]) -> S::f32s {
    let mut value = simd.splat_f32s(coefficients[N - 1]);
    for coefficient in coefficients.into_iter().rev().skip(1) {
        value = simd.mul_add_f32s(value, x, simd.splat_f32s(coefficient));
    }
    value
}

/// Numbers with the magnitude of `magnitude`, which is not negative, and the sign of `sign`.
#[inline(always)]
pub(crate) fn copy_sign<S: Simd>(simd: S, magnitude: S::f32s, sign: S::f32s) -> S::f32s {
    simd.or_f32s(magnitude, simd.and_f32s(sign, simd.splat_f32s(-0.0)))
}

/// A product, and what was rounded off.
#[inline(always)]
pub(crate) fn product_and_rest<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> (S::f32s, S::f32s) {
    let product = simd.mul_f32s(a, b);
    (product, simd.mul_add_f32s(a, b, simd.neg_f32s(product)))
}

/// A sum, and what was rounded off (Knuth, "The Art of Computer Programming", volume 2, theorem B of 4.2.2).
#[inline(always)]
pub(crate) fn sum_and_rest<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> (S::f32s, S::f32s) {
    let sum = simd.add_f32s(a, b);
    let added = simd.sub_f32s(sum, a);
    let of_a = simd.sub_f32s(a, simd.sub_f32s(sum, added));
    (sum, simd.add_f32s(of_a, simd.sub_f32s(b, added)))
}

macro_rules! over_slices {
    ($($(#[$doc:meta])* $name:ident by $vector:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// If `out` is not as long as `x`.
        pub fn $name(x: &[f32], out: &mut [f32]) {
            #[inline(always)]
            fn pass<S: Simd>(simd: S, x: &[f32], out: &mut [f32]) {
                for_each_vector(
                    simd,
                    (x, out),
                    #[inline(always)]
                    |(x, out)| f32::store(simd, out, $vector(simd, f32::load(simd, x))),
                );
            }
            assert_eq!(out.len(), x.len(), "`out` must be as long as `x`");
            dispatch!(pass(x: &[f32], out: &mut [f32]) -> ())
        }
    )*};
}

over_slices! {
    /// The exponential function of each element.
    exp by exp_f32s;

    /// The natural logarithm of each element.
    ln by ln_f32s;

    /// The error function of each element.
    erf by erf_f32s;

    /// The hyperbolic tangent of each element.
    tanh by tanh_f32s;

    /// The logistic sigmoid of each element.
    sigmoid by sigmoid_f32s;
}
