//! The natural logarithm.

use pulp::Simd;

use super::{LN_2_HIGH, LN_2_LOW, polynomial};

/// The bits of √½: mantissas are taken from there to √2.
const ROOT_OF_HALF: u32 = 0x3f35_04f3;

/// The exponent's bias in [`ln_f32s`], chosen so that nothing is negative, in its place in a number's bits.
const BIAS: u32 = 128 << 23;

/// Under its exponent, the lowest bits count ones.
const ONES: f32 = 8_388_608.0;

/// (ln(1 + f) − f + f²/2) / f³, for √½ ≤ 1 + f ≤ √2.
const COEFFICIENTS: [f32; 8] = [
    3.333_331_6e-1,
    -2.500_081e-1,
    2.000_228_6e-1,
    -1.662_456_1e-1,
    1.418_119e-1,
    -1.312_870_4e-1,
    1.288_163_7e-1,
    -7.859_712e-2,
];

/// The natural logarithm of each lane, at most 2 units in the last place from the true value; −∞ of zeros, not-a-number of negative
/// numbers.
#[inline(always)]
pub fn ln_f32s<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let subnormal = simd.less_than_f32s(x, simd.splat_f32s(f32::MIN_POSITIVE));
    let normal = simd.select_f32s(subnormal, simd.mul_f32s(x, simd.splat_f32s(ONES)), x);
    let bits = simd.transmute_u32s_f32s(normal);
    let shift = simd.splat_u32s(f32::MANTISSA_DIGITS - 1);
    let biased = simd
        .wrapping_dyn_shr_u32s(simd.add_u32s(bits, simd.splat_u32s(BIAS.wrapping_sub(ROOT_OF_HALF))), shift);
    let zero =
        simd.select_f32s(subnormal, simd.splat_f32s(-ONES - 128.0 - 23.0), simd.splat_f32s(-ONES - 128.0));
    let exponent = simd.transmute_f32s_u32s(simd.or_u32s(biased, simd.splat_u32s(ONES.to_bits())));
    let exponent = simd.add_f32s(exponent, zero);
    let mantissa =
        simd.add_u32s(simd.sub_u32s(bits, simd.wrapping_dyn_shl_u32s(biased, shift)), simd.splat_u32s(BIAS));
    let f = simd.sub_f32s(simd.transmute_f32s_u32s(mantissa), simd.splat_f32s(1.0));
    let square = simd.mul_f32s(f, f);
    let low = simd.mul_f32s(exponent, simd.splat_f32s(LN_2_LOW));
    let rest = simd.mul_add_f32s(simd.mul_f32s(square, f), polynomial(simd, f, COEFFICIENTS), low);
    let rest = simd.mul_add_f32s(square, simd.splat_f32s(-0.5), rest);
    let result = simd.mul_add_f32s(exponent, simd.splat_f32s(LN_2_HIGH), simd.add_f32s(rest, f));
    // The edges, the last of which wins.
    let finite = simd.less_than_f32s(x, simd.splat_f32s(f32::INFINITY));
    let result = simd.select_f32s(finite, result, x);
    let zero = simd.splat_f32s(0.0);
    let result = simd.select_f32s(simd.less_than_f32s(x, zero), simd.splat_f32s(f32::NAN), result);
    simd.select_f32s(simd.equal_f32s(x, zero), simd.splat_f32s(f32::NEG_INFINITY), result)
}
