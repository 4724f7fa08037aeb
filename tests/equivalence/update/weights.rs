//! Targets with weights: losses are divided by their exact sum.

use brigade::core::{Batch, Error, Groups};
use brigade_cpu::device;
use burn::tensor::Tensor;

use crate::mesh::on_threads;

use super::{ALONE, Case, RATE, Rows, values};

/// Uneven numbers, of very different sizes; the second micro-batch weighs nothing.
fn uneven(number: usize) -> Rows {
    let weights: Vec<f32> = match number % 4 {
        1 => vec![0.0; 3],
        _ => (0..3).map(|row| 0.1 * (number + row * 5) as f32 * 10f32.powi(3 * row as i32 - 5)).collect(),
    };
    let (input, target) = values(number, &weights);
    Batch::weighted(input, target, &weights)
}

#[test]
fn uneven_weights_equal_one_process() {
    let case = Case { batch: uneven, ..Case::default() };
    let alone = case.equals_one_process("weights");
    // The first row of the first micro-batch weighs nothing, and neither do those of the second.
    assert_eq!(alone.reports[0].targets, 8);
    let weight = alone.reports[0].target_weight;
    assert!(weight > 0.0 && weight.fract() != 0.0, "{weight}");
    Case { every: 2, clipping: Some(0.01), ..case }.equals_one_process("weights and steps without an update");
}

#[test]
fn the_size_of_micro_batches_changes_no_bit_of_the_sum() {
    let weights: Vec<f32> = (1..=12).map(|row| 0.1 * row as f32 * 10f32.powi(row % 7 - 3)).collect();
    let case = Case::default();
    let weight = |rows: usize| {
        let batches = weights.chunks(rows).enumerate().map(|(number, weights)| {
            let (input, target) = values(number, weights);
            Batch::weighted(input, target, weights)
        });
        let mut engine = case.engine(Groups::single_rank(), 0).unwrap();
        engine.step(batches.collect(), RATE).unwrap().target_weight.to_bits()
    };
    assert!([1, 2, 4, 6].into_iter().all(|rows| weight(rows) == weight(12)));
}

#[test]
fn weights_of_one_are_none() {
    let ones = |number| {
        let (input, target) = values(number, &[1.0; 3]);
        Batch::weighted(input, target, &[1.0; 3])
    };
    let weighted = Case { batch: ones, ..Case::default() }.train(ALONE, None, 0..2);
    let plain = Case::default().train(ALONE, None, 0..2);
    crate::mesh::same_bits(&weighted.weights, &plain.weights, "weights of one");
    assert_eq!(weighted.reports[1].target_weight, 12.0);
}

#[test]
fn no_weight_and_wrong_weights_are_errors_on_all_ranks() {
    for (wrong, every) in [(0.0, 1), (0.0, 2), (-1.0, 1), (f32::NAN, 1), (f32::INFINITY, 2)] {
        let errors = on_threads(2, 2, |groups| {
            let case = Case { every, ..Case::default() };
            let mut engine = case.engine(groups.clone(), 3).unwrap();
            let rank = groups.world().rank();
            let batches = || -> Vec<Rows> {
                let own = |index: usize| if wrong != 0.0 && (rank, index) != (3, 1) { 1.0 } else { wrong };
                let zeros = || Tensor::zeros([1, 21], &device());
                (0..2)
                    .map(|index| Batch::weighted(Tensor::ones([1, 20], &device()), zeros(), &[own(index)]))
                    .collect()
            };
            for _ in 1..every {
                engine.accumulate(batches()).unwrap();
            }
            engine.step(batches(), RATE).unwrap_err()
        });
        for error in errors {
            assert!(error.is_agreed(), "{error}");
            assert_eq!(matches!(error, Error::NoTargets { .. }), wrong == 0.0, "{error}");
            assert_eq!(matches!(error, Error::TargetWeights { .. }), wrong != 0.0, "{error}");
        }
    }
}
