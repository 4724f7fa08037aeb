//! Against plain loops in double precision.

use half::bf16;
use proptest::prelude::*;
use pulp::Arch;

use super::*;
use crate::arch::tests::on_each;
use crate::element::Element;
use crate::testing::{distance, limit, numbers, units_among};

const EPSILON: f32 = 1e-5;

struct Exact {
    y: Vec<(f64, f64)>,
    mean: f64,
    factor: f64,
}

/// A row's norm, with the magnitude of what each output is a sum of.
fn exact(x: &[f64], gamma: &[f64], beta: Option<&[f64]>, centered: bool) -> Exact {
    let n = x.len() as f64;
    let mean = if centered { x.iter().sum::<f64>() / n } else { 0.0 };
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let factor = 1.0 / (variance + f64::from(EPSILON)).sqrt();
    let magnitude = if centered { x.iter().map(|x| x.abs()).sum::<f64>() / n } else { 0.0 };
    let y = (0..x.len()).map(|i| {
        let beta = beta.map_or(0.0, |beta| beta[i]);
        let scale = factor * gamma[i];
        ((x[i] - mean) * scale + beta, (x[i].abs() + magnitude) * scale.abs() + beta.abs())
    });
    Exact { y: y.collect(), mean, factor }
}

/// The gradient of a row's input, with the magnitude of what each is a sum of, and the normalized row.
fn exact_backward(
    g: &[f64],
    x: &[f64],
    gamma: &[f64],
    (mean, factor): (f64, f64),
    centered: bool,
) -> (Vec<(f64, f64)>, Vec<f64>) {
    let n = x.len() as f64;
    let normal: Vec<f64> = x.iter().map(|x| (x - mean) * factor).collect();
    let scaled: Vec<f64> = g.iter().zip(gamma).map(|(g, gamma)| g * gamma).collect();
    let of = |values: &dyn Fn(usize) -> f64| (0..x.len()).map(values).sum::<f64>() / n;
    let c1 = if centered { of(&|i| scaled[i]) } else { 0.0 };
    let m1 = if centered { of(&|i| scaled[i].abs()) } else { 0.0 };
    let c2 = of(&|i| scaled[i] * normal[i]);
    let spread = |i: usize| (x[i].abs() + mean.abs()) * factor;
    let m2 = of(&|i| scaled[i].abs() * spread(i));
    let d_x = (0..x.len()).map(|i| {
        (factor * (scaled[i] - c1 - normal[i] * c2), factor * (scaled[i].abs() + m1 + spread(i) * m2))
    });
    (d_x.collect(), normal)
}

fn wide<T: Element>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| f64::from(value.to_f32())).collect()
}

fn near<T: Element>(kind: Arch, got: &[T], exact: &[(f64, f64)]) {
    near_within(limit(kind), got, exact);
}

/// `limit`: of numbers in fp32.
fn near_within<T: Element>(limit: f64, got: &[T], exact: &[(f64, f64)]) {
    let limit = if size_of::<T>() == 4 { limit } else { 0.6 };
    for (got, (exact, magnitude)) in got.iter().zip(exact) {
        let distance = distance(*got, *exact, *magnitude);
        assert!(distance <= limit, "{got:?} is {distance} units from {exact:e}");
    }
}

/// Both norms and their gradients, of `rows` rows.
fn check_all<T: Element>(rows: usize, width: usize, seed: u64) {
    let count = rows * width;
    let x = numbers::<T>(count, seed, 4.0);
    let (gamma, beta) = (numbers::<f32>(width, seed + 2, 2.0), numbers::<f32>(width, seed + 3, 1.0));
    let gradient = numbers::<T>(count, seed + 4, 1.0);
    let (wide_gamma, wide_beta) = (wide(&gamma), wide(&beta));
    let zeros = vec![T::ZERO; count];
    on_each(|kind| {
        for centered in [true, false] {
            let (mut y, mut d_x) = (zeros.clone(), zeros.clone());
            let (mut means, mut factors) = (vec![0.0; rows], vec![0.0; rows]);
            let (mut d_gamma, mut d_beta) = (vec![1.0; width], vec![-1.0; width]);
            if centered {
                let (m, f) = (&mut means, &mut factors);
                layer_norm(&x, &gamma, Some(&beta), EPSILON, &mut y, m, f);
                let (m, f) = (&means, &factors);
                layer_norm_backward(&gradient, &x, m, f, &gamma, &mut d_x, &mut d_gamma, &mut d_beta);
            } else {
                rms_norm(&x, &gamma, EPSILON, &mut y, &mut factors);
                rms_norm_backward(&gradient, &x, &factors, &gamma, &mut d_x, &mut d_gamma);
            }
            let mut columns = vec![[(1.0, 1.0), (-1.0, 1.0)]; width];
            for row in 0..rows {
                let at = row * width..(row + 1) * width;
                let (x, g) = (wide(&x[at.clone()]), wide(&gradient[at.clone()]));
                let beta = centered.then_some(wide_beta.as_slice());
                let truth = exact(&x, &wide_gamma, beta, centered);
                near(kind, &y[at.clone()], &truth.y);
                let magnitude = x.iter().map(|x| x.abs()).sum::<f64>() / width as f64;
                assert!(units_among(f64::from(means[row]), truth.mean, magnitude) <= limit(kind));
                let off = units_among(f64::from(factors[row]), truth.factor, truth.factor);
                assert!(
                    off <= limit(kind),
                    "{kind:?}: {} is {off} units from {}",
                    factors[row],
                    truth.factor
                );
                // What the backward pass is given, rounded.
                let statistics = (f64::from(means[row]), f64::from(factors[row]));
                let (slopes, normal) = exact_backward(&g, &x, &wide_gamma, statistics, centered);
                // A sum along the row, and three products that are rounded by half a unit each.
                near_within(limit(kind) + 1.5, &d_x[at], &slopes);
                for i in 0..width {
                    columns[i][0].0 += g[i] * normal[i];
                    columns[i][0].1 += (g[i] * (x[i].abs() + statistics.0.abs()) * statistics.1).abs();
                    columns[i][1].0 += g[i];
                    columns[i][1].1 += g[i].abs();
                }
            }
            near(kind, &d_gamma, &columns.iter().map(|column| column[0]).collect::<Vec<_>>());
            if centered {
                near(kind, &d_beta, &columns.iter().map(|column| column[1]).collect::<Vec<_>>());
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_shape_is_near_the_truth(rows in 0usize..20, width in 1usize..150, seed in 0u64..1000) {
        check_all::<f32>(rows, width, seed);
        check_all::<bf16>(rows, width, seed);
    }
}

/// Its gradient is 2.7 units off.
#[test]
fn a_row_whose_roundings_add_up_is_near_the_truth() {
    check_all::<f32>(8, 12, 433);
}

#[test]
fn a_large_mean_does_not_drown_the_variance() {
    let x: Vec<f32> = (0..64).map(|i| 1000.0 + (i % 2) as f32 * 0.125).collect();
    let (mut y, mut means, mut factors) = ([0.0; 64], [0.0], [0.0]);
    layer_norm(&x, &[1.0; 64], None, 0.0, &mut y, &mut means, &mut factors);
    assert_eq!((means[0], factors[0]), (1000.0625, 16.0));
    assert_eq!(y[..2], [-1.0, 1.0]);
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let x = [1.0, 2.0, 3.0, 1.0, f32::NAN, 3.0, 1.0, f32::INFINITY, 3.0];
    let (mut y, mut means, mut factors) = ([0.0; 9], [0.0; 3], [0.0; 3]);
    layer_norm(&x, &[1.0; 3], Some(&[0.0; 3]), EPSILON, &mut y, &mut means, &mut factors);
    assert!(y[..3].iter().all(|y| y.is_finite()) && y[3..].iter().all(|y| y.is_nan()));
}

#[test]
fn no_rows_and_no_columns_are_allowed() {
    layer_norm::<f32>(&[], &[1.0; 3], None, EPSILON, &mut [], &mut [], &mut []);
    rms_norm::<f32>(&[], &[], EPSILON, &mut [], &mut [1.0; 2]);
}

#[test]
#[should_panic(expected = "`y` must have 6 elements, but has 5")]
fn lengths_must_fit() {
    layer_norm(&[0f32; 6], &[1.0; 3], None, EPSILON, &mut [0.0; 5], &mut [0.0; 2], &mut [0.0; 2]);
}

/// As PyTorch gives them, however small epsilon is: the mean of equal numbers is the number itself.
#[test]
fn equal_numbers_are_normalized_to_zero() {
    on_each(|_| {
        for (width, number) in [(768, 1000.3), (768, 43.342_857), (4096, 1000.3), (5, 1.0137), (33, -7.1e-3)]
        {
            let (x, gamma) = (vec![number; width], vec![1.0; width]);
            let (mut y, mut mean, mut factor) = (vec![1.0; width], [0.0], [0.0]);
            layer_norm(&x, &gamma, None, 1e-12, &mut y, &mut mean, &mut factor);
            assert_eq!((y, mean), (vec![0.0; width], [number]));
        }
    });
}
