//! The hyperbolic tangent and the logistic sigmoid.

use pulp::Simd;

use super::{copy_sign, exp_f32s, polynomial};

/// Up to here, the hyperbolic tangent is its argument times a polynomial of the square.
const SMALL: f32 = 1.0;

/// (tanh(x) − x) / x³, in x².
const COEFFICIENTS: [f32; 7] = [
    -3.333_33e-1,
    1.333_240_4e-1,
    -5.388_363_5e-2,
    2.149_821_8e-2,
    -7.964_116_5e-3,
    2.315_333_3e-3,
    -3.627_055_3e-4,
];

/// The hyperbolic tangent of each lane, at most 2 units in the last place from the true value.
#[inline(always)]
pub fn tanh_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let (one, two) = (simd.splat_f32s(1.0), simd.splat_f32s(2.0));
    let magnitude = simd.abs_f32s(x);
    let square = simd.mul_f32s(x, x);
    let polynomial = simd.mul_f32s(square, polynomial(simd, square, COEFFICIENTS));
    let small = simd.mul_add_f32s(polynomial, magnitude, magnitude);
    let grown = exp_f32s(simd, simd.mul_f32s(magnitude, two));
    let large = simd.sub_f32s(one, simd.div_f32s(two, simd.add_f32s(grown, one)));
    let is_small = simd.less_than_f32s(magnitude, simd.splat_f32s(SMALL));
    copy_sign(simd, simd.select_f32s(is_small, small, large), x)
}

/// The logistic sigmoid, 1 / (1 + e⁻ˣ), of each lane, at most 2 units in the last place from the true value.
#[inline(always)]
pub fn sigmoid_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let one = simd.splat_f32s(1.0);
    let shrunk = exp_f32s(simd, simd.neg_f32s(simd.abs_f32s(x)));
    let negative = simd.less_than_f32s(x, simd.splat_f32s(0.0));
    let above = simd.select_f32s(negative, shrunk, one);
    let below = simd.add_f32s(one, shrunk);
    // What the sum lost, exactly, since 1 is the larger term (Dekker, 1971): the quotient is corrected by it.
    let lost = simd.sub_f32s(shrunk, simd.sub_f32s(below, one));
    let reciprocal = simd.div_f32s(one, below);
    let quotient = simd.mul_f32s(above, reciprocal);
    let rest = simd.mul_add_f32s(simd.neg_f32s(quotient), below, above);
    let rest = simd.mul_add_f32s(simd.neg_f32s(quotient), lost, rest);
    simd.mul_add_f32s(rest, reciprocal, quotient)
}
