//! The table: meshes of up to eight ranks, every ZeRO stage, and what else changes a step.

use brigade::core::plan::ScheduleKind;
use brigade::core::{Groups, Recompute, Zero};
use brigade::models::gpt::Gelu;
use burn::tensor::{Device, FloatDType};

use crate::backend::{Backend, backends};
use crate::compare::{near, same_bits};
use crate::row::{MIXED, Outcome, RATE, Row};

/// How far a row may be from the CPU.
struct Tolerance {
    /// Of losses, norms, and each tensor's norm.
    relative: f64,
    /// Of each element of a gradient besides.
    gradient: f64,
    /// Of each weight besides, as a part of the learning rate.
    weight: f64,
}

/// A step of AdamW has the size of the learning rate however small the gradient is. Where that is hardly more than
/// rounding (for the attention's key biases it is nothing else) the step is, too.
const FP32: Tolerance = Tolerance { relative: 1e-5, gradient: 0.0, weight: 1e-2 };

/// Steps of SGD are as exact as gradients.
const SGD: Tolerance = Tolerance { weight: 0.0, ..FP32 };

/// Burn's kernels compute the error function, and so the exact GELU, by a formula that is off by up to 5e-7, several
/// units in the last place. It shows in the gradients of biases before it, in whose sums larger terms cancel.
const ERF: Tolerance = Tolerance { relative: 3e-5, ..FP32 };

const BF16: Tolerance = Tolerance { relative: 2e-2, gradient: 1e-4, weight: 1.0 };

fn run(backend: &Backend, row: &Row) -> Vec<Outcome> {
    backend.on_threads(row.pp, row.dp, |device, groups| Row { device, ..row.clone() }.run(groups))
}

/// Fails unless both have the same bits.
fn is_same(outcome: &Outcome, other: &Outcome, what: &str) {
    for (a, b) in outcome.reports.iter().zip(&other.reports) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss, {what}");
        assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm, {what}");
    }
    assert_eq!(outcome.validation.to_bits(), other.validation.to_bits(), "validation, {what}");
    same_bits(&outcome.weights, &other.weights, &format!("weights, {what}"));
    same_bits(&outcome.gradients, &other.gradients, &format!("gradients, {what}"));
}

/// Fails unless losses, norms and weights are near those of the CPU's one process.
fn is_near(outcome: &Outcome, reference: &Outcome, tolerance: &Tolerance, what: &str) {
    let close = |a: f64, b: f64, part: &str| {
        assert!((a - b).abs() <= tolerance.relative * b.abs(), "{part}, {what}: {a}, not {b}");
    };
    for (a, b) in outcome.reports.iter().zip(&reference.reports) {
        close(a.loss, b.loss, "loss");
        close(a.grad_norm, b.grad_norm, "norm");
        assert_eq!((a.targets, a.skipped), (b.targets, b.skipped), "targets, {what}");
    }
    close(outcome.validation, reference.validation, "validation");
    let step = tolerance.weight * RATE;
    near(&outcome.weights, &reference.weights, tolerance.relative, step, &format!("weights, {what}"));
}

/// Runs a row on each backend. Each rank is near the CPU's one process. A second run has the same bits; where sums are
/// those of one process that is one process on the same device, else the row again.
fn follows_the_cpu(row: &Row, tolerance: &Tolerance) {
    let reference = row.reference().run(Groups::alone());
    for backend in backends() {
        let what = |rank: usize| format!("rank {rank} on {} of {row:?}", backend.name);
        let outcomes = run(&backend, row);
        for (rank, outcome) in outcomes.iter().enumerate() {
            is_near(outcome, &reference, tolerance, &what(rank));
        }
        let (gradients, expected) = (&outcomes[0].gradients, &reference.gradients);
        near(gradients, expected, tolerance.relative, tolerance.gradient, &format!("gradients, {}", what(0)));
        let again = run(&backend, &if backend.has_exact_sums { row.reference() } else { row.clone() });
        is_same(&outcomes[0], &again[0], &format!("again, {}", what(0)));
        for (rank, outcome) in outcomes.iter().enumerate() {
            same_bits(
                &outcome.weights,
                &outcomes[0].weights,
                &format!("weights, {} beside rank 0", what(rank)),
            );
        }
    }
}

fn zero(stage: u8) -> Zero {
    Zero { stage, ..Zero::default() }
}

/// The base of the rows.
fn row() -> Row {
    Row { activation: Gelu::GeluTanh, layers: 2, ..Row::default() }
}

fn follow(rows: &[Row]) {
    for row in rows {
        follows_the_cpu(row, if row.optimizer == "sgd" { &SGD } else { &FP32 });
    }
}

#[test]
fn on_one_rank() {
    follow(&[
        row(),
        Row { tied: true, masked: true, clipping: Some(0.05), ..row() },
        Row { recompute: Recompute::Every(1), micro_batches: 3, ..row() },
        Row { optimizer: "sgd", layers: 3, ..row() },
    ]);
}

#[test]
fn on_two_data_parallel_ranks() {
    let base = Row { dp: 2, micro_batches: 2, ..row() };
    follow(&[
        Row { tied: true, ..base.clone() },
        Row { zero: zero(1), offload: true, ..base.clone() },
        Row { zero: zero(2), masked: true, ..base.clone() },
        Row { zero: zero(3), recompute: Recompute::Every(2), ..base.clone() },
        Row { zero: zero(3), optimizer: "sgd", tied: true, ..base },
    ]);
}

#[test]
fn on_four_data_parallel_ranks() {
    let base = Row { dp: 4, micro_batches: 1, ..row() };
    follow(&[
        base.clone(),
        Row { zero: zero(1), clipping: Some(0.05), ..base.clone() },
        Row { zero: zero(2), tied: true, micro_batches: 2, ..base.clone() },
        Row { zero: zero(3), masked: true, clipping: Some(0.05), ..base },
    ]);
}

#[test]
fn on_two_stages() {
    let base = Row { pp: 2, ..row() };
    follow(&[
        base.clone(),
        Row { schedule: ScheduleKind::GPipe, tied: true, ..base.clone() },
        Row { schedule: ScheduleKind::Interleaved, chunks: 2, masked: true, ..base.clone() },
        Row { recompute: Recompute::Every(1), clipping: Some(0.05), ..base },
    ]);
}

#[test]
fn on_two_stages_of_data_parallel_ranks() {
    let base = Row { pp: 2, dp: 2, micro_batches: 2, ..row() };
    follow(&[
        Row { masked: true, ..base.clone() },
        Row { zero: zero(1), tied: true, clipping: Some(0.05), ..base.clone() },
        Row { zero: zero(2), recompute: Recompute::Every(2), optimizer: "sgd", ..base.clone() },
        Row { zero: zero(3), schedule: ScheduleKind::Interleaved, chunks: 2, tied: true, ..base.clone() },
        Row { dp: 4, zero: zero(3), ..base },
    ]);
}

#[test]
fn with_the_error_function() {
    for row in [
        Row { activation: Gelu::Gelu, layers: 3, tied: true, micro_batches: 8, ..row() },
        Row { activation: Gelu::Gelu, dp: 2, zero: zero(1), ..row() },
    ] {
        follows_the_cpu(&row, &ERF);
    }
}

/// Where the device computes in bf16.
#[test]
fn in_mixed_precision() {
    for backend in backends() {
        let of_rank = |device: Device, _| device.supports_dtype(FloatDType::BF16);
        if !backend.on_threads(1, 1, of_rank)[0] {
            println!("skipped: {} does not compute in bf16", backend.name);
            return;
        }
    }
    for row in [
        Row { precision: MIXED, ..row() },
        Row { precision: MIXED, dp: 2, zero: zero(3), tied: true, ..row() },
        Row { precision: MIXED, pp: 2, dp: 2, zero: zero(1), ..row() },
    ] {
        follows_the_cpu(&row, &BF16);
    }
}
