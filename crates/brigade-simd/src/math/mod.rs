//! Elementary functions, at most 2 units in the last place from the true value over all of `f32`, with the true function's values at
//! the edges: zeros keep their sign where it has one, results too large are infinite, results too small are
//! subnormal or zero, and not-a-number stays one.
//!
//! Each function comes as a pass over a slice, and as a function of a register for other kernels. Coefficients without a named
//! source are minimax polynomials by Remez' exchange algorithm, rounded to `f32`.

mod exp;
#[cfg(test)]
mod tests;

use pulp::Simd;

pub use exp::exp_f32s;

use crate::arch::dispatch;
use crate::element::Element;
use crate::slices::for_each_vector;

/// A polynomial at `x`, by Horner's rule; the coefficients stand in the order of rising powers.
#[inline(always)]
pub(crate) fn polynomial<S: Simd, const N: usize>(simd: S, x: S::f32s, coefficients: [f32; N]) -> S::f32s {
    let mut value = simd.splat_f32s(coefficients[N - 1]);
    for coefficient in coefficients.into_iter().rev().skip(1) {
        value = simd.mul_add_f32s(value, x, simd.splat_f32s(coefficient));
    }
    value
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
}
