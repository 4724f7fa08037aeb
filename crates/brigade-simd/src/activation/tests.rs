//! Against plain loops in double precision.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::arch::tests::on_each;
use crate::testing::{numbers, units, units_among};

const ALL: [ActivationFunction; 4] = [
    ActivationFunction::Gelu,
    ActivationFunction::GeluTanh,
    ActivationFunction::Silu,
    ActivationFunction::Relu,
];

/// The value, the derivative, and the magnitude of what the derivative is a sum of.
fn exact(activation: ActivationFunction, x: f64) -> (f64, f64, f64) {
    let sigmoid = |z: f64| if z < 0.0 { z.exp() / (1.0 + z.exp()) } else { 1.0 / (1.0 + (-z).exp()) };
    // s(x) and x · s'(x), where the value is x · s(x).
    let (s, slope) = match activation {
        ActivationFunction::Gelu => {
            let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            (libm::erfc(-x / 2f64.sqrt()) / 2.0, x * density)
        }
        ActivationFunction::GeluTanh => {
            let factor = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let z = factor * (x + 0.044715 * x * x * x);
            let dz = factor * (1.0 + 3.0 * 0.044715 * x * x);
            (sigmoid(z), if z.abs() > 700.0 { 0.0 } else { x * sigmoid(z) * sigmoid(-z) * dz })
        }
        ActivationFunction::Silu => (sigmoid(x), x * sigmoid(x) * sigmoid(-x)),
        ActivationFunction::Relu => (f64::from(u8::from(x > 0.0)), 0.0),
    };
    (x * s, s + slope, s.abs() + slope.abs())
}

/// Numbers of all magnitudes, and densely where the functions bend.
fn samples() -> Vec<f32> {
    let every = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).filter(|x| x.is_finite());
    every.chain((-1_600_000..1_600_000).map(|i| i as f32 * 1e-5)).collect()
}

#[test]
fn values_and_derivatives_are_near_the_truth() {
    let x = samples();
    for activation in ALL {
        let (mut value, mut slope) = (vec![0.0; x.len()], vec![1.0; x.len()]);
        activation.forward(&mut x.clone(), None, &mut value);
        let mut again = x.clone();
        activation.backward_again(&mut again, &mut slope, None);
        assert!(again == value, "{activation:?}");
        let (mut worst, mut worst_slope) = ((0.0, 0.0), (0.0, 0.0));
        for ((x, value), slope) in x.iter().zip(&value).zip(&slope) {
            let (exact, exact_slope, magnitude) = exact(activation, f64::from(*x));
            let (distance, distance_slope) =
                (units(*value, exact), units_among(f64::from(*slope), exact_slope, magnitude));
            worst = if distance > worst.0 { (distance, *x) } else { worst };
            worst_slope = if distance_slope > worst_slope.0 { (distance_slope, *x) } else { worst_slope };
        }
        println!("{activation:?}: at most {worst:?} units, derivative {worst_slope:?}");
        assert!(worst.0 <= 2.0 && worst_slope.0 <= 2.0, "{activation:?}: {worst:?}, {worst_slope:?}");
        on_each(|kind| {
            let (mut there, mut slope_there) = (vec![0.0; x.len()], vec![1.0; x.len()]);
            activation.forward(&mut x.clone(), None, &mut there);
            let mut again = x.clone();
            activation.backward_again(&mut again, &mut slope_there, None);
            assert!(there == value && again == value && slope_there == slope, "{activation:?} on {kind:?}");
        });
    }
}

#[test]
fn edges_are_pytorchs() {
    let x = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN];
    for activation in ALL {
        let mut y = [1.0; 7];
        activation.forward(&mut x.clone(), None, &mut y);
        assert_eq!(y.map(f32::to_bits)[..3], [0.0, -0.0, f32::INFINITY].map(f32::to_bits), "{activation:?}");
        assert_eq!(y[3].is_nan(), activation != ActivationFunction::Relu, "{activation:?}");
        assert!(y[4].is_nan());
        assert_eq!(y[5..], [f32::MAX, 0.0], "{activation:?}");
        let mut slope = [1.0; 7];
        activation.backward_again(&mut x.clone(), &mut slope, None);
        let at_zero = if activation == ActivationFunction::Relu { 0.0 } else { 0.5 };
        assert_eq!(slope[..2], [at_zero; 2], "{activation:?}");
        assert_eq!(slope[2..4].iter().all(|x| x.is_nan()), activation != ActivationFunction::Relu);
        assert_eq!(slope[4].is_nan(), activation != ActivationFunction::Relu);
        assert_eq!(slope[5..], [1.0, 0.0], "{activation:?}");
    }
}

/// All functions of this module, of elements of `T`, against double precision.
fn check<T: Element>(rows: usize, width: usize, seed: u64) {
    let count = rows * width;
    let (x, up) = (numbers::<T>(count, seed, 4.0), numbers::<T>(count, seed + 1, 2.0));
    let (bias, gradient) = (numbers::<T>(width, seed + 2, 2.0), numbers::<T>(count, seed + 3, 1.0));
    let zeros = vec![T::ZERO; count];
    // Functions are within two units. A product with them is, too, relative to it: up to twice as many of its own, and half for its rounding.
    let limit = if size_of::<T>() == 4 { 4.5 } else { 0.6 };
    let near = |got: T, truth: f64, magnitude: f64| {
        assert!(crate::testing::distance(got, truth, magnitude) <= limit, "{got:?} is far from {truth:e}");
    };
    for activation in ALL {
        on_each(|_| {
            let (mut hidden, mut y) = (x.clone(), zeros.clone());
            activation.forward(&mut hidden, Some(&bias), &mut y);
            let (mut d_x, mut in_place) = (zeros.clone(), gradient.clone());
            let mut sums = vec![1.0; width];
            let mut sums_in_place = sums.clone();
            activation.backward(&hidden, &gradient, &mut d_x, Some(&mut sums));
            let mut again = hidden.clone();
            activation.backward_again(&mut again, &mut in_place, Some(&mut sums_in_place));
            let (mut gated, mut d_gate, mut d_up) = (zeros.clone(), zeros.clone(), zeros.clone());
            activation.gated(&hidden, &up, &mut gated);
            activation.gated_backward(&hidden, &up, &gradient, &mut d_gate, &mut d_up);
            let (mut exact_sums, mut magnitudes) = (vec![1.0; width], vec![1.0; width]);
            for i in 0..count {
                let sum = x[i].to_f32() + bias[i % width].to_f32();
                assert_eq!(hidden[i].to_f32(), T::from_f32(sum).to_f32());
                let (value, slope, magnitude) = exact(activation, f64::from(hidden[i].to_f32()));
                let (up, g) = (f64::from(up[i].to_f32()), f64::from(gradient[i].to_f32()));
                near(y[i], value, value.abs());
                near(d_x[i], slope * g, (magnitude * g).abs());
                assert_eq!(
                    [d_x[i], y[i]].map(|x| x.to_f32().to_bits()),
                    [in_place[i], again[i]].map(|x| x.to_f32().to_bits())
                );
                exact_sums[i % width] += slope * g;
                magnitudes[i % width] += (magnitude * g).abs();
                near(gated[i], value * up, (value * up).abs());
                near(d_gate[i], g * up * slope, (g * up * magnitude).abs());
                near(d_up[i], g * value, (g * value).abs());
            }
            assert_eq!(sums, sums_in_place);
            for ((sum, exact), magnitude) in sums.iter().zip(&exact_sums).zip(&magnitudes) {
                let distance = units_among(f64::from(*sum), *exact, *magnitude);
                // Its terms are such products in fp32, whatever the type is.
                assert!(distance <= 4.5, "{sum} is {distance} units from {exact}");
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_shape_is_near_the_truth(rows in 0usize..20, width in 0usize..70, seed in 0u64..1000) {
        check::<f32>(rows, width, seed);
        check::<bf16>(rows, width, seed);
    }
}

#[test]
#[should_panic(expected = "`y` must have 3 elements, but has 2")]
fn the_output_must_fit() {
    ActivationFunction::Gelu.forward(&mut [0f32; 3], None, &mut [0.0; 2]);
}

#[test]
#[should_panic(expected = "`x` must be whole rows of 2, but has 3 elements")]
fn the_bias_must_fit() {
    ActivationFunction::Gelu.forward(&mut [0f32; 3], Some(&[0.0; 2]), &mut [0.0; 3]);
}
