//! The table: meshes of up to eight ranks, every ZeRO stage, and what else changes a step.

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{Groups, Recompute, Zero};
use brigade::models::gpt::Gelu;
use burn::tensor::{Device, FloatDType};

use crate::backend::{Backend, Tolerance, backends};
use crate::compare::{near, near_together, same_bits};
use crate::row::{MIXED, Outcome, Row};

const STEPS: u64 = 6;

/// Burn's kernels compute the error function, and so the exact GELU, by a formula that is off by up to 5e-7, several
/// units in the last place. It shows in the gradients of biases before it, in whose sums larger terms cancel.
const ERF: f64 = 3e-5;

fn run(backend: &Backend, row: &Row) -> Vec<Outcome> {
    backend.on_threads(row.pp, row.dp, |device, groups| Row { device, ..row.clone() }.run(groups))
}

/// Fails unless both have the same bits.
fn is_same(outcome: &Outcome, other: &Outcome, what: &str) {
    for (a, b) in outcome.reports.iter().zip(&other.reports) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss, {what}");
        assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm, {what}");
    }
    assert_eq!(outcome.validation, other.validation, "validation, {what}");
    same_bits(&outcome.weights, &other.weights, &format!("weights, {what}"));
    same_bits(&outcome.gradients, &other.gradients, &format!("gradients, {what}"));
}

/// Fails unless the losses and norms of all steps, the loss of validation, and the weights after SGD are near those of the
/// CPU's one process. (A step of AdamW has the size of the learning rate however small the gradient is, and where the gradient
/// is hardly more than rounding the step is, too: for the attention's key biases it is nothing else. The losses tell whether
/// it steps as on the CPU.)
fn is_near(outcome: &Outcome, reference: &Outcome, optimizer: &str, tolerance: Tolerance, what: &str) {
    let Tolerance { relative, rounds } = tolerance;
    let close = |a: f64, b: f64, part: &str| {
        assert!((a - b).abs() <= relative * b.abs(), "{part}, {what}: {a}, not {b}");
    };
    assert_eq!(outcome.reports.len(), reference.reports.len(), "steps, {what}");
    for (a, b) in outcome.reports.iter().zip(&reference.reports) {
        close(a.loss, b.loss, &format!("loss of step {}", a.step));
        if optimizer == "sgd" || a.step == 1 || !rounds {
            close(a.grad_norm, b.grad_norm, &format!("norm of step {}", a.step));
        }
        assert_eq!((a.targets, a.skipped), (b.targets, b.skipped), "targets, {what}");
    }
    close(outcome.validation.loss, reference.validation.loss, "validation");
    if optimizer == "sgd" {
        near(&outcome.weights, &reference.weights, relative, &format!("weights, {what}"));
    }
}

/// Runs a row on each of the backends. Each rank is near the CPU's one process, within what the backend's numbers allow or
/// `least`, if that is more. A second run has the same bits; where sums are those of one process that is one process on the
/// same device, else the row again.
fn follows_the_cpu(row: &Row, backends: &[Backend], least: f64) {
    let row = Row { steps: STEPS, ..row.clone() };
    let reference = row.reference().run(Groups::single_rank());
    for backend in backends {
        let what = |rank: usize| format!("rank {rank} on {} of {row:?}", backend.name);
        let mut tolerance = backend.tolerance(row.precision.compute);
        tolerance.relative = tolerance.relative.max(least);
        if backend.times_kernels {
            run(backend, &row);
        }
        let outcomes = run(backend, &row);
        for (rank, outcome) in outcomes.iter().enumerate() {
            is_near(outcome, &reference, row.optimizer, tolerance, &what(rank));
        }
        let (gradients, expected) = (&outcomes[0].gradients, &reference.gradients);
        let compare = if tolerance.rounds { near_together } else { near };
        compare(gradients, expected, tolerance.relative, &format!("gradients, {}", what(0)));
        let again = run(backend, &if backend.has_exact_sums { row.reference() } else { row.clone() });
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
        follows_the_cpu(row, &backends(), 0.0);
    }
}

#[test]
fn on_one_rank() {
    follow(&[
        row(),
        Row { tied: true, masked: true, clipping: Some(0.05), ..row() },
        Row { recompute: Recompute::Every(1), micro_batches: 3, ..row() },
        Row { optimizer: "sgd", layers: 3, ..row() },
        Row { optimizer: "sgd", tied: true, masked: true, clipping: Some(0.05), ..row() },
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
        Row { zero: zero(1), optimizer: "sgd", clipping: Some(0.05), ..base.clone() },
        Row { zero: zero(2), tied: true, micro_batches: 2, ..base.clone() },
        Row { zero: zero(3), masked: true, clipping: Some(0.05), ..base },
    ]);
}

#[test]
fn on_two_stages() {
    let base = Row { pp: 2, ..row() };
    follow(&[
        base.clone(),
        Row { schedule: PipelineScheduleKind::GPipe, tied: true, ..base.clone() },
        Row { schedule: PipelineScheduleKind::Interleaved, chunks: 2, masked: true, ..base.clone() },
        Row { recompute: Recompute::Every(1), clipping: Some(0.05), ..base.clone() },
        Row { schedule: PipelineScheduleKind::ZbH1, layers: 4, ..base.clone() },
        Row { optimizer: "sgd", tied: true, schedule: PipelineScheduleKind::Interleaved, chunks: 2, ..base },
    ]);
}

#[test]
fn on_two_stages_of_data_parallel_ranks() {
    let base = Row { pp: 2, dp: 2, micro_batches: 2, ..row() };
    follow(&[
        Row { masked: true, ..base.clone() },
        Row { zero: zero(1), tied: true, clipping: Some(0.05), ..base.clone() },
        Row { zero: zero(2), recompute: Recompute::Every(2), optimizer: "sgd", ..base.clone() },
        Row {
            zero: zero(3),
            schedule: PipelineScheduleKind::Interleaved,
            chunks: 2,
            tied: true,
            ..base.clone()
        },
        Row { zero: zero(3), schedule: PipelineScheduleKind::Zbv, chunks: 2, ..base.clone() },
        Row { dp: 4, zero: zero(3), ..base },
    ]);
}

#[test]
fn with_the_error_function() {
    for row in [
        Row { activation: Gelu::Gelu, layers: 3, tied: true, micro_batches: 8, ..row() },
        Row { activation: Gelu::Gelu, dp: 2, zero: zero(1), optimizer: "sgd", ..row() },
    ] {
        follows_the_cpu(&row, &backends(), ERF);
    }
}

/// On the devices that compute in bf16.
#[test]
fn in_mixed_precision() {
    let mut backends = backends();
    backends.retain(|backend| {
        let of_rank = |device: Device, _| device.supports_dtype(FloatDType::BF16);
        let computes = backend.on_threads(1, 1, of_rank)[0];
        if !computes {
            println!("skipped: {} does not compute in bf16", backend.name);
        }
        computes
    });
    for row in [
        Row { precision: MIXED, ..row() },
        Row { precision: MIXED, optimizer: "sgd", layers: 3, ..row() },
        Row { precision: MIXED, dp: 2, zero: zero(3), tied: true, ..row() },
        Row { precision: MIXED, pp: 2, dp: 2, zero: zero(1), optimizer: "sgd", ..row() },
    ] {
        follows_the_cpu(&row, &backends, 0.0);
    }
}
