//! Against plain loops in double precision.

use half::bf16;
use proptest::prelude::*;

use super::*;
use crate::arch::tests::on_each;
use crate::testing::{distance, limit, numbers, units_among};

fn check<T: Element>(rows: usize, classes: usize, seed: u64, smoothing: Smoothing) {
    let logits = numbers::<T>(rows * classes, seed, 20.0);
    let targets: Vec<i64> = (0..rows).map(|row| ((row * 31 + seed as usize) % classes) as i64).collect();
    let scales = numbers::<f32>(rows, seed + 1, 2.0);
    let (share, z) = (f64::from(smoothing.label_smoothing), f64::from(smoothing.z_loss));
    on_each(|kind| {
        let (mut losses, mut hits, mut logarithms) = (vec![0.0; rows], vec![2.0; rows], vec![0.0; rows]);
        cross_entropy(&logits, &targets, smoothing, &mut losses, &mut hits, &mut logarithms);
        let mut gradient = logits.clone();
        cross_entropy_backward(&mut gradient, &targets, smoothing, &logarithms, &scales);
        for row in 0..rows {
            let target = targets[row] as usize;
            let at = row * classes..(row + 1) * classes;
            let x: Vec<f64> = logits[at.clone()].iter().map(|x| f64::from(x.to_f32())).collect();
            let highest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = x.iter().map(|x| (x - highest).exp()).sum();
            let l = highest + sum.ln();
            // The sum, which is at least 1, is rounded before its logarithm is taken.
            let magnitude = highest.abs() + sum.ln() + 1.0;
            let mean = x.iter().sum::<f64>() / classes as f64;
            let mean_magnitude = x.iter().map(|x| x.abs()).sum::<f64>() / classes as f64;
            let loss = (1.0 - share) * (l - x[target]) + share * (l - mean) + z * l * l;
            let loss_magnitude = magnitude + x[target].abs() + share * mean_magnitude + z * l * l;
            let near = |got: f32, truth: f64, magnitude: f64| {
                let off = units_among(f64::from(got), truth, magnitude);
                assert!(off <= limit(kind), "{kind:?}: {got} is {off} units from {truth}");
            };
            near(losses[row], loss, loss_magnitude);
            near(logarithms[row], l, magnitude);
            assert_eq!(hits[row] == 1.0, x.iter().position(|logit| *logit == highest) == Some(target));
            let (l, scale) = (f64::from(logarithms[row]), f64::from(scales[row]));
            for (class, got) in gradient[at].iter().enumerate() {
                let probability = (x[class] - l).exp() * (1.0 + 2.0 * z * l);
                let is_target = if class == target { 1.0 - share } else { 0.0 };
                let truth = scale * (probability - is_target - share / classes as f64);
                let magnitude = scale.abs() * (probability.abs() + is_target + share / classes as f64);
                let off = distance(*got, truth, magnitude);
                let limit = if size_of::<T>() == 4 { 2.5 } else { 0.6 };
                assert!(off <= limit, "{kind:?}: {got:?} is {off} units from {truth:e}");
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_shape_is_near_the_truth(rows in 0usize..8, classes in 1usize..200, seed in 0u64..1000) {
        for smoothing in [
            Smoothing::default(),
            Smoothing { label_smoothing: 0.1, z_loss: 0.0 },
            Smoothing { label_smoothing: 0.2, z_loss: 1e-4 },
        ] {
            check::<f32>(rows, classes, seed, smoothing);
            check::<bf16>(rows, classes, seed, smoothing);
        }
    }
}

#[test]
fn a_row_of_a_large_vocabulary_is_near_the_truth() {
    check::<f32>(1, 50_257, 7, Smoothing::default());
}

#[test]
fn edges_are_pytorchs() {
    const INF: f32 = f32::INFINITY;
    let logits = [
        0.0,
        -INF,
        1.0,
        /* */ -INF,
        -INF,
        -INF,
        /* */ 1.0,
        INF,
        0.0,
        /* */ 0.0,
        f32::NAN,
        5.0,
        /* */ 3.0,
        3.0,
        2.0,
    ];
    let targets = [1, 0, 1, 2, 1];
    on_each(|_| {
        let (mut losses, mut hits, mut logarithms) = ([0.0; 5], [2.0; 5], [0.0; 5]);
        cross_entropy(&logits, &targets, Smoothing::default(), &mut losses, &mut hits, &mut logarithms);
        assert_eq!(losses[0], INF, "a masked target");
        assert!(losses[1..4].iter().all(|loss| loss.is_nan()));
        assert!(losses[4].is_finite());
        assert_eq!(hits, [0.0; 5], "of two highest, the first is a hit");
        cross_entropy(
            &logits[12..],
            &[0],
            Smoothing::default(),
            &mut losses[..1],
            &mut hits[..1],
            &mut logarithms[..1],
        );
        assert_eq!(hits[0], 1.0);
        let mut gradient = logits;
        cross_entropy_backward(&mut gradient, &targets, Smoothing::default(), &logarithms, &[1.0; 5]);
        assert_eq!(gradient[1], -1.0, "a masked class has no probability");
        assert!(gradient[0] > 0.0 && gradient[2] > 0.0 && gradient[3..12].iter().all(|slope| slope.is_nan()));
    });
}

#[test]
fn rows_with_a_target_below_zero_are_ignored() {
    let logits = [f32::NAN, 1.0, 2.0, 3.0, 1.0, f32::INFINITY];
    on_each(|_| {
        let [mut losses, mut hits, mut logarithms] = [[2.0; 3]; 3];
        let smoothing = Smoothing { label_smoothing: 0.1, z_loss: 1e-4 };
        cross_entropy(&logits, &[-100, 1, -1], smoothing, &mut losses, &mut hits, &mut logarithms);
        assert_eq!([losses[0], losses[2], hits[0], hits[2]], [0.0; 4]);
        assert!(losses[1] > 0.0 && hits[1] == 1.0);
        let mut gradient = logits;
        cross_entropy_backward(&mut gradient, &[-100, 1, -1], smoothing, &logarithms, &[1.0; 3]);
        assert_eq!([gradient[0], gradient[1], gradient[4], gradient[5]], [0.0; 4]);
        assert!(gradient[2] > 0.0 && gradient[3] < 0.0);
    });
}

/// As PyTorch gives it.
#[test]
fn a_masked_target_has_an_infinite_loss_when_smoothed() {
    on_each(|_| {
        for label_smoothing in [0.0, 0.1, 1.0] {
            let [mut loss, mut hit, mut logarithm] = [[0.0]; 3];
            let smoothing = Smoothing { label_smoothing, z_loss: 0.0 };
            let logits = [0.0, f32::NEG_INFINITY, 1.0];
            cross_entropy(&logits, &[1], smoothing, &mut loss, &mut hit, &mut logarithm);
            assert_eq!(loss, [f32::INFINITY], "{label_smoothing}");
        }
    });
}

#[test]
#[should_panic(expected = "`targets` has 3 in row 1, which is none of 3 classes")]
fn targets_must_be_classes() {
    let [mut a, mut b, mut c] = [[0.0; 2]; 3];
    cross_entropy(&[0f32; 6], &[0, 3], Smoothing::default(), &mut a, &mut b, &mut c);
}

#[test]
#[should_panic(expected = "`logits` must be whole rows, one for each of 2 targets, but has 5 elements")]
fn lengths_must_fit() {
    cross_entropy_backward(&mut [0f32; 5], &[0, 1], Smoothing::default(), &[0.0; 2], &[0.0; 2]);
}
