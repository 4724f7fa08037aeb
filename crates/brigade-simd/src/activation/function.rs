//! The functions of single elements, and their derivatives.
//!
//! Each of GELU, its approximation and SiLU is `x · s(x)` with a sigmoid `s(x) = 1 − s(−x)`, so with t = |x| it is `max(x, 0) − t · s(−t)`, and its
//! derivative is `s(−t) − t · s'(t)` for negative x and 1 minus that for others. `s(−t)` is computed with a small relative error
//! however small it is, which `1 − s(t)` would not have.

use pulp::Simd;

use crate::math::{Exponential, bounded_exponential, polynomial, product_and_rest, sum_and_rest};

/// A function of an element. At infinities it has PyTorch's values: where that multiplies an infinity by zero, not-a-number.
pub(crate) trait Function: Copy {
    /// The value and the derivative of each lane. What is not used costs nothing.
    fn value_and_derivative<S: Simd>(self, simd: S, x: S::f32s) -> (S::f32s, S::f32s);

    #[inline(always)]
    fn value<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
        self.value_and_derivative(simd, x).0
    }

    /// The gradient of the input, from that of the output.
    #[inline(always)]
    fn backward<S: Simd>(self, simd: S, x: S::f32s, gradient: S::f32s) -> S::f32s {
        simd.mul_f32s(self.value_and_derivative(simd, x).1, gradient)
    }
}

/// From the two for the negative argument of x's magnitude to those for x.
#[inline(always)]
fn mirrored<S: Simd>(simd: S, x: S::f32s, value: S::f32s, derivative: S::f32s) -> (S::f32s, S::f32s) {
    let infinity = simd.splat_f32s(f32::INFINITY);
    let nan = simd.splat_f32s(f32::NAN);
    let negative = simd.less_than_f32s(x, simd.splat_f32s(0.0));
    // Of a positive or negative zero, or not-a-number, itself.
    let positive_part = simd.select_f32s(negative, simd.splat_f32s(-0.0), x);
    let lowest = simd.equal_f32s(x, simd.neg_f32s(infinity));
    let value = simd.select_f32s(lowest, nan, simd.sub_f32s(positive_part, value));
    let derivative = simd.select_f32s(negative, derivative, simd.sub_f32s(simd.splat_f32s(1.0), derivative));
    let infinite = simd.equal_f32s(simd.abs_f32s(x), infinity);
    (value, simd.select_f32s(infinite, nan, derivative))
}

/// The magnitude of x, at most `most`; not-a-number stays.
#[inline(always)]
fn magnitude<S: Simd>(simd: S, x: S::f32s, most: f32) -> S::f32s {
    let (magnitude, most) = (simd.abs_f32s(x), simd.splat_f32s(most));
    simd.select_f32s(simd.greater_than_f32s(magnitude, most), most, magnitude)
}

/// A number and a correction, about as large as its rounding error.
type Pair<F> = (F, F);

/// A sum of two numbers times an exponential, rounded at its last step alone where it is subnormal.
#[inline(always)]
fn times<S: Simd>(simd: S, (high, low): Pair<S::f32s>, exponential: &Exponential<S::f32s>) -> S::f32s {
    let (first, second) = exponential.powers;
    let low = simd.mul_add_f32s(low, exponential.fraction, low);
    let product = simd.add_f32s(high, simd.mul_add_f32s(high, exponential.fraction, low));
    simd.mul_f32s(simd.mul_f32s(product, first), second)
}

/// What belongs to `t · sigmoid(−z)`, where `exponential` is e⁻ᶻ and `slope` is z's derivative by t: it, and its derivative by −t.
#[inline(always)]
fn logistic<S: Simd>(
    simd: S,
    t: S::f32s,
    (slope, slope_rest): Pair<S::f32s>,
    exponential: &Exponential<S::f32s>,
) -> (S::f32s, S::f32s) {
    let (zero, one) = (simd.splat_f32s(0.0), simd.splat_f32s(1.0));
    let small = times(simd, (one, zero), exponential);
    let divisor = simd.add_f32s(one, small);
    let divisor_rest = simd.sub_f32s(small, simd.sub_f32s(divisor, one));
    // 1 / (1 + e⁻ᶻ), and t times that.
    let inverse = simd.div_f32s(one, divisor);
    let error = simd.negate_mul_add_f32s(inverse, divisor, one);
    let inverse_rest = simd.mul_f32s(inverse, simd.negate_mul_add_f32s(inverse, divisor_rest, error));
    let (share, share_rest) = product_and_rest(simd, t, inverse);
    let share_rest = simd.mul_add_f32s(t, inverse_rest, share_rest);
    let value = times(simd, (share, share_rest), exponential);
    let (change, change_rest) = product_and_rest(simd, slope, share);
    let factor = simd.sub_f32s(one, change);
    let rounded = simd.sub_f32s(simd.sub_f32s(one, factor), change);
    let change_rest = simd.mul_add_f32s(slope_rest, share, simd.mul_add_f32s(slope, share_rest, change_rest));
    let factor_rest = simd.sub_f32s(rounded, change_rest);
    let (derivative, rest) = product_and_rest(simd, inverse, factor);
    let rest = simd.mul_add_f32s(inverse, factor_rest, simd.mul_add_f32s(inverse_rest, factor, rest));
    (value, times(simd, (derivative, rest), exponential))
}

/// `x · sigmoid(x)`.
#[derive(Clone, Copy)]
pub(crate) struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
        // From there on it is zero.
        let t = magnitude(simd, x, 110.0);
        let exponential = bounded_exponential(simd, simd.neg_f32s(t), simd.splat_f32s(0.0));
        let (value, derivative) =
            logistic(simd, t, (simd.splat_f32s(1.0), simd.splat_f32s(0.0)), &exponential);
        mirrored(simd, x, value, derivative)
    }
}

/// `x · sigmoid(2 √(2/π) (x + 0.044715 x³))`, which is `x / 2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
#[derive(Clone, Copy)]
pub(crate) struct GeluTanh;

/// 2 √(2/π), and its product with 0.044715: each rounded, and what was rounded off.
const LINEAR: f32 = 1.595_769_2;
const LINEAR_REST: f32 = LINEAR_TRUE_REST as f32;
const LINEAR_TRUE_REST: f64 = 1.595_769_121_605_731 - LINEAR as f64;
const CUBIC: f32 = 0.071_354_814;
const CUBIC_REST: f32 = CUBIC_TRUE_REST as f32;
const CUBIC_TRUE_REST: f64 = 0.071_354_816_272_600_25 - CUBIC as f64;

impl Function for GeluTanh {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
        // From there on it is zero.
        let t = magnitude(simd, x, 12.0);
        let (linear, cubic) = (simd.splat_f32s(LINEAR), simd.splat_f32s(CUBIC));
        // The argument z of the sigmoid and its rounding error, which the exponential would multiply.
        let (square, square_rest) = product_and_rest(simd, t, t);
        let (grown, grown_rest) = product_and_rest(simd, cubic, square);
        let (factor, factor_rest) = sum_and_rest(simd, linear, grown);
        let grown_rest = simd.mul_add_f32s(cubic, square_rest, grown_rest);
        let grown_rest = simd.mul_add_f32s(simd.splat_f32s(CUBIC_REST), square, grown_rest);
        let factor_rest = simd.add_f32s(factor_rest, simd.add_f32s(grown_rest, simd.splat_f32s(LINEAR_REST)));
        let (z, z_rest) = product_and_rest(simd, factor, t);
        let z_rest = simd.mul_add_f32s(factor_rest, t, z_rest);
        let exponential = bounded_exponential(simd, simd.neg_f32s(z), simd.neg_f32s(z_rest));
        let two = simd.splat_f32s(2.0);
        let (slope, slope_rest) = sum_and_rest(simd, factor, simd.mul_f32s(two, grown));
        let slope_rest = simd.add_f32s(slope_rest, simd.mul_add_f32s(two, grown_rest, factor_rest));
        let slope = (slope, slope_rest);
        let (value, derivative) = logistic(simd, t, slope, &exponential);
        mirrored(simd, x, value, derivative)
    }
}

/// `x · Φ(x)`, Φ being the distribution function of the normal distribution.
#[derive(Clone, Copy)]
pub(crate) struct Gelu;

/// Φ(−t) e^(t²/2) is a polynomial in (t − 4) / (t + 4), divided by t + 4 (after Shepherd and Laframboise, "Chebyshev Approximation
/// of (1 + 2x) exp(x²) erfc x in 0 ≤ x < ∞", 1981). The first coefficient is here as a sum, the others are in [`TAIL`].
const TAIL_FIRST: f32 = 7.552_851_4e-1;
const TAIL_FIRST_REST: f32 = -8.593_686e-9;
const TAIL: [f32; 9] = [
    -6.078_965_7e-1,
    3.871_369e-1,
    -1.865_236_6e-1,
    6.040_349e-2,
    -7.524_005e-3,
    -3.510_209_7e-3,
    1.568_405_7e-3,
    1.746_567e-4,
    -1.341_966_4e-4,
];

/// 1 / √(2π), rounded, and what was rounded off.
const DENSITY_AT_ZERO: f32 = 3.989_423e-1;
const DENSITY_AT_ZERO_REST: f32 = -1.133_517e-8;

impl Function for Gelu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
        let (one, four) = (simd.splat_f32s(1.0), simd.splat_f32s(4.0));
        // From there on it is zero.
        let t = magnitude(simd, x, 15.0);
        let (square, square_rest) = product_and_rest(simd, t, t);
        let (divisor, divisor_rest) = sum_and_rest(simd, t, four);
        let inverse = simd.div_f32s(one, divisor);
        // The relative error of the inverse, and about what it makes of the result's.
        let error = simd.negate_mul_add_f32s(inverse, divisor, one);
        let error = simd.negate_mul_add_f32s(inverse, divisor_rest, error);
        let weight = simd.mul_add_f32s(simd.splat_f32s(9.8), inverse, simd.splat_f32s(0.7));
        let error = simd.mul_f32s(error, weight);
        let y = simd.negate_mul_add_f32s(simd.splat_f32s(8.0), inverse, one);
        let (first, others) = (simd.splat_f32s(TAIL_FIRST), polynomial(simd, y, TAIL));
        let quotient = simd.mul_add_f32s(y, others, first);
        let quotient_rest = simd.mul_add_f32s(y, others, simd.sub_f32s(first, quotient));
        let quotient_rest = simd.add_f32s(quotient_rest, simd.splat_f32s(TAIL_FIRST_REST));
        let (tail, tail_rest) = product_and_rest(simd, quotient, inverse);
        let tail_rest = simd.mul_add_f32s(quotient_rest, inverse, tail_rest);
        let tail_rest = simd.mul_add_f32s(error, tail, tail_rest);
        let minus_half = simd.splat_f32s(-0.5);
        let exponential = bounded_exponential(
            simd,
            simd.mul_f32s(square, minus_half),
            simd.mul_f32s(square_rest, minus_half),
        );
        let (value, value_rest) = product_and_rest(simd, t, tail);
        let value_rest = simd.mul_add_f32s(t, tail_rest, value_rest);
        let value = times(simd, (value, value_rest), &exponential);
        let derivative = simd.negate_mul_add_f32s(t, simd.splat_f32s(DENSITY_AT_ZERO), tail);
        let rest = simd.negate_mul_add_f32s(t, simd.splat_f32s(DENSITY_AT_ZERO_REST), tail_rest);
        mirrored(simd, x, value, times(simd, (derivative, rest), &exponential))
    }
}

/// `max(x, 0)`.
#[derive(Clone, Copy)]
pub(crate) struct Relu;

impl Function for Relu {
    #[inline(always)]
    fn value_and_derivative<S: Simd>(self, simd: S, x: S::f32s) -> (S::f32s, S::f32s) {
        (self.value(simd, x), self.backward(simd, x, simd.splat_f32s(1.0)))
    }

    #[inline(always)]
    fn value<S: Simd>(self, simd: S, x: S::f32s) -> S::f32s {
        let zero = simd.splat_f32s(0.0);
        simd.select_f32s(simd.less_than_f32s(x, zero), zero, x)
    }

    #[inline(always)]
    fn backward<S: Simd>(self, simd: S, x: S::f32s, gradient: S::f32s) -> S::f32s {
        let zero = simd.splat_f32s(0.0);
        simd.select_f32s(simd.less_than_or_equal_f32s(x, zero), zero, gradient)
    }
}
