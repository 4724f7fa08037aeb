//! The error function.

use pulp::Simd;

use super::{copy_sign, exp_f32s, polynomial};

/// Up to here, the error function is its argument times a polynomial of the square.
const SMALL: f32 = 0.93;

/// From here on it is 1 in `f32`.
const LARGE: f32 = 4.0;

/// erf(x) / x − 1, in x².
const OF_SMALL: [f32; 7] = [
    1.283_791_7e-1,
    -3.761_263e-1,
    1.128_362_4e-1,
    -2.685_558_8e-2,
    5.191_948e-3,
    -8.043_846e-4,
    7.969_744e-5,
];

/// −ln(1 − erf(x)) / x − 1, in x.
const OF_LARGE: [f32; 8] = [
    1.285_449_4e-1,
    6.356_563e-1,
    1.052_034_2e-1,
    -2.261_262_8e-2,
    2.892_745_7e-3,
    -3.625_554_7e-5,
    -4.815_747_5e-5,
    5.146_542_7e-6,
];

/// The error function of each lane, at most 2 units in the last place from the true value.
#[inline(always)]
pub fn erf_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let magnitude = simd.abs_f32s(x);
    let small = simd.mul_add_f32s(magnitude, polynomial(simd, simd.mul_f32s(x, x), OF_SMALL), magnitude);
    let most = simd.splat_f32s(LARGE);
    let t = simd.select_f32s(simd.greater_than_f32s(magnitude, most), most, magnitude);
    let logarithm = simd.mul_add_f32s(t, polynomial(simd, t, OF_LARGE), t);
    let large = simd.sub_f32s(simd.splat_f32s(1.0), exp_f32s(simd, simd.neg_f32s(logarithm)));
    let is_small = simd.less_than_f32s(magnitude, simd.splat_f32s(SMALL));
    copy_sign(simd, simd.select_f32s(is_small, small, large), x)
}
