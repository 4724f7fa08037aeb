//! Each function against a double-precision one.

use super::*;
use crate::arch::tests::on_each;
use crate::testing::units;

const EDGES: [f32; 16] = [
    0.0,
    1e-45,
    f32::MIN_POSITIVE,
    1.0,
    1.0 + f32::EPSILON,
    1.0 - f32::EPSILON,
    88.722_83,
    88.722_84,
    87.336_54,
    87.336_55,
    103.972_08,
    103.972_07,
    103.3,
    f32::MAX,
    f32::INFINITY,
    f32::NAN,
];

/// Asserts that `function` is at most `limit` units in the last place from `truth` at every [`STEP`]th number and at the edges, with the
/// same bits on each kind of SIMD.
fn check(function: fn(&[f32], &mut [f32]), truth: fn(f64) -> f64, limit: f64) {
    let edges = EDGES.into_iter().chain(EDGES.map(|edge| -edge));
    let mut numbers = (0..=u32::MAX).step_by(STEP).map(f32::from_bits).chain(edges);
    let mut worst = (0.0, 0.0);
    loop {
        let x: Vec<f32> = numbers.by_ref().take(1 << 20).collect();
        if x.is_empty() {
            break;
        }
        let mut expected = vec![0.0; x.len()];
        function(&x, &mut expected);
        for (x, got) in x.iter().zip(&expected) {
            let distance = units(*got, truth(f64::from(*x)));
            worst = if distance > worst.0 { (distance, *x) } else { worst };
        }
        on_each(|kind| {
            let mut out = vec![0.0; x.len()];
            function(&x, &mut out);
            for ((x, got), expected) in x.iter().zip(&out).zip(&expected) {
                let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
                assert!(same, "{kind:?}: f({x:e}) = {got:e}, but {expected:e} on another");
            }
        });
    }
    println!("at most {} units, at {:e}", worst.0, worst.1);
    assert!(worst.0 <= limit, "{} units at {:e}", worst.0, worst.1);
}

/// Asserts that it does not matter where an element stands, nor what stands beside it.
fn check_pieces(function: fn(&[f32], &mut [f32])) {
    let x: Vec<f32> = (0..151).map(|i| (i as f32 - 70.0) * 0.37).collect();
    on_each(|kind| {
        let mut whole = vec![0.0; x.len()];
        function(&x, &mut whole);
        for length in [0, 1, 2, 7, 15, 16, 17, 33, 64, 150] {
            let mut pieces = vec![0.0; x.len()];
            x.chunks(length.max(1))
                .zip(pieces.chunks_mut(length.max(1)))
                .for_each(|(x, out)| function(x, out));
            assert_eq!(pieces, whole, "{kind:?} in pieces of {length}");
        }
    });
    function(&[], &mut []);
}

/// A prime, so that all patterns of the mantissa come up.
const STEP: usize = 509;

#[test]
fn exp_is_near_the_truth() {
    check(exp, libm::exp, 2.0);
    check_pieces(exp);
    let mut out = [1.0; 6];
    exp(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -0.0, 0.0, -104.0], &mut out);
    assert!(out[2].is_nan());
    out[2] = 0.0;
    assert_eq!(out, [0.0, f32::INFINITY, 0.0, 1.0, 1.0, 0.0]);
}

#[test]
fn ln_is_near_the_truth() {
    check(ln, libm::log, 2.0);
    check_pieces(|x, out| ln(&x.iter().map(|x| x.abs()).collect::<Vec<_>>(), out));
    let mut out = [1.0; 6];
    ln(&[0.0, -0.0, f32::INFINITY, 1.0, -1e-45, f32::NEG_INFINITY], &mut out);
    assert_eq!(out[..4], [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY, 0.0]);
    assert!(out[4].is_nan() && out[5].is_nan());
}

#[test]
fn erf_is_near_the_truth() {
    check(erf, libm::erf, 2.0);
    check_pieces(erf);
}

#[test]
fn tanh_is_near_the_truth() {
    check(tanh, libm::tanh, 2.0);
    check_pieces(tanh);
}

/// 1 / (1 + e⁻ˣ).
fn exact_sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

#[test]
fn sigmoid_is_near_the_truth() {
    check(sigmoid, exact_sigmoid, 2.0);
    check_pieces(sigmoid);
}

#[test]
fn odd_functions_keep_the_sign_of_zero() {
    for function in [erf, tanh] {
        let mut out = [1.0; 2];
        function(&[0.0, -0.0], &mut out);
        assert_eq!(out.map(f32::to_bits), [0.0f32, -0.0].map(f32::to_bits));
    }
}

#[test]
#[should_panic(expected = "`out` must be as long as `x`")]
fn lengths_must_fit() {
    exp(&[1.0, 2.0], &mut [0.0]);
}
