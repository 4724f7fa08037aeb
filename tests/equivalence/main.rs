//! Every row runs a small GPT on a mesh, its ranks as threads, and must equal one process to the
//! bit: losses, norms, gradients of the first step, weights after the last, validation losses.

#![allow(clippy::unwrap_used)]

mod axes;
mod backward_halves;
mod blocks;
mod case;
mod footprint;
mod hosts;
mod in_flight;
mod layers;
mod mesh;
mod models;
#[cfg(feature = "mpi")]
mod mpi;
mod parameters;
mod resume;
mod row;
mod strategies;
mod table;
mod update;

use brigade::core::plan::PipelineScheduleKind;
use brigade::core::{
    Batch, Dtype, Error, Groups, NamedTensor, NonFinite, Precision, Recompute, ReduceEvery,
    ReshardAfterForward, StepReport, Zero,
};
use brigade::models::gpt::Targets;
use burn::tensor::Tensor;

use mesh::{equals_one_process, on_threads, same_bits};
use row::{MIXED, Row};

#[test]
fn clipping_is_active() {
    for (pp, dp, stage) in [(1, 2, 0), (1, 4, 3), (2, 2, 1), (4, 1, 0)] {
        let zero = Zero { stage, ..Zero::default() };
        let row = Row { pp, dp, clipping: Some(0.05), masked: true, zero, ..Row::default() };
        let outcomes = equals_one_process(&row);
        assert!(outcomes[0].reports.iter().all(|report| report.grad_norm > 0.05));
    }
}

#[test]
fn without_fused_operations() {
    for (pp, dp, stage, recompute) in [
        (1, 2, 0, Recompute::None),
        (2, 2, 3, Recompute::None),
        (1, 4, 2, Recompute::Every(1)),
        (2, 1, 0, Recompute::Every(2)),
    ] {
        let zero = Zero { stage, ..Zero::default() };
        for masked in [false, true] {
            let row = Row { pp, dp, zero, recompute, masked, fused: false, ..Row::default() };
            let burn = equals_one_process(&row);
            let fused = equals_one_process(&Row { fused: true, ..row });
            let mut pairs = burn[0].weights.iter().zip(&fused[0].weights);
            assert!(pairs.any(|(a, b)| a.data.as_bytes() != b.data.as_bytes()), "they are other operations");
            let (burn, fused) = (&burn[0].reports, &fused[0].reports);
            assert!(
                burn.iter().zip(fused).all(|(burn, fused)| (burn.loss - fused.loss).abs() < 1e-5 * burn.loss)
            );
        }
    }
}

#[test]
fn other_optimizers() {
    for (optimizer, pp, dp, stage) in
        [("lion", 1, 2, 2), ("sgd", 1, 4, 1), ("lion", 2, 2, 3), ("sgd", 3, 1, 0)]
    {
        let zero = Zero { stage, ..Zero::default() };
        equals_one_process(&Row { optimizer, pp, dp, zero, ..Row::default() });
    }
}

#[test]
fn seven_blocks_on_three_stages() {
    for split in [vec![], vec![3, 3, 1], vec![1, 2, 4]] {
        for tied in [false, true] {
            equals_one_process(&Row {
                pp: 3,
                dp: 2,
                layers: 5,
                split: split.clone(),
                tied,
                ..Row::default()
            });
        }
    }
}

#[test]
fn parameters_come_and_go_as_set() {
    for reshard_after_forward in
        [ReshardAfterForward::Default, ReshardAfterForward::Always, ReshardAfterForward::Never]
    {
        for (keep_gathered, prefetch) in [(false, 0), (false, 1), (false, 3), (true, 1)] {
            for reduce_every in [ReduceEvery::MicroBatch, ReduceEvery::Step] {
                let zero = Zero {
                    stage: 3,
                    prefetch,
                    reshard_after_forward,
                    keep_gathered,
                    reduce_every,
                    ..Zero::default()
                };
                for pp in [1, 2] {
                    equals_one_process(&Row {
                        pp,
                        dp: 2,
                        micro_batches: 2,
                        tied: true,
                        zero,
                        ..Row::default()
                    });
                }
            }
        }
    }
}

/// The gradients of tied weights go to the stage that owns them once a step: with one micro-batch the bits are those of one process, with several those of every
/// schedule, near those of one process.
#[test]
fn tied_gradients_are_sent_once_a_step() {
    use PipelineScheduleKind::{GPipe, Interleaved, OneFOneB, ZbH1, Zbv};
    let tied = Row { tied: true, tied_gradients: ReduceEvery::Step, ..Row::default() };
    for (pp, dp, stage) in [(2, 1, 0), (2, 2, 3), (3, 2, 1)] {
        let zero = Zero { stage, ..Zero::default() };
        equals_one_process(&Row { pp, dp, zero, micro_batches: 1, ..tied.clone() });
    }
    for (dp, stage) in [(1, 0), (2, 0), (2, 3)] {
        let zero = Zero { stage, ..Zero::default() };
        let row = Row { pp: 2, dp, zero, ..tied.clone() };
        let exact = row.reference().run(Groups::single_rank());
        let mut first: Option<Vec<NamedTensor>> = None;
        for (schedule, chunks) in [(OneFOneB, 1), (GPipe, 1), (Interleaved, 2), (ZbH1, 1), (Zbv, 2)] {
            let row = Row { schedule, chunks, ..row.clone() };
            let outcomes = on_threads(2, dp, |groups| row.run(groups));
            let found = &outcomes[0];
            same_bits(first.get_or_insert_with(|| found.weights.clone()), &found.weights, "another schedule");
            for (a, b) in exact.gradients.iter().zip(&found.gradients) {
                let [a, b] = [a, b].map(|tensor| tensor.data.as_slice::<f32>().unwrap());
                let most = a.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
                assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * most), "{schedule:?}");
            }
        }
        let [own, exact] = [first.as_deref().unwrap(), &exact.weights];
        let differs = own.iter().zip(exact).any(|(a, b)| a.data.as_bytes() != b.data.as_bytes());
        assert!(differs, "they are other sums");
    }
}

/// Sums in bf16 over the ranks: all ranks have the same weights, near those of fp32 sums.
#[test]
fn sums_in_half_precision() {
    let precision = Precision { compute: Dtype::F32, reduce: Dtype::Bf16 };
    for (pp, stage) in [(1, 0), (1, 3), (2, 1)] {
        let zero = Zero { stage, ..Zero::default() };
        let row = Row { pp, dp: 2, precision, zero, ..Row::default() };
        let reference = Row { precision: Precision::default(), ..row.reference() }.run(Groups::single_rank());
        let outcomes = on_threads(pp, 2, |groups| row.run(groups));
        for outcome in &outcomes {
            same_bits(&outcome.weights, &outcomes[0].weights, "sums in bf16");
            let (last, exact) = (outcome.reports[1].loss, reference.reports[1].loss);
            assert!((last - exact).abs() < 1e-2 * exact && last != exact, "{last} {exact}");
        }
    }
}

#[test]
fn a_part_of_a_model_says_so() {
    let errors = on_threads(2, 1, |groups| {
        let row = Row { pp: 2, ..Row::default() };
        row.engine(groups).unwrap().chain().tensors().unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("holds a part of the model")), "{errors:?}");
}

#[test]
fn every_second_block_is_computed_again() {
    for stage in [0, 3] {
        let zero = Zero { stage, ..Zero::default() };
        equals_one_process(&Row { pp: 2, dp: 2, recompute: Recompute::Every(2), zero, ..Row::default() });
    }
}

/// The host's device is the blocks' own here; masters are kept and stepped apart all the same.
#[test]
fn the_optimizer_on_the_host() {
    for (pp, stage) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        let zero = Zero { stage, ..Zero::default() };
        equals_one_process(&Row { pp, dp: 2, tied: true, zero, offload: true, ..Row::default() });
    }
}

#[test]
fn eight_ranks() {
    for stage in 0..4 {
        let zero = Zero { stage, ..Zero::default() };
        equals_one_process(&Row { dp: 8, micro_batches: 1, zero, ..Row::default() });
    }
}

/// bf16 in forward and backward: the same bits on any mesh, and near the fp32 run.
#[test]
fn mixed_precision() {
    let plain = Row { dp: 2, ..Row::default() }.reference().run(Groups::single_rank());
    for (pp, dp, stage) in [(1, 2, 0), (1, 2, 1), (1, 2, 3), (2, 2, 2), (2, 1, 0), (2, 2, 3)] {
        let zero = Zero { stage, ..Zero::default() };
        let row = Row { pp, dp, precision: MIXED, tied: true, zero, ..Row::default() };
        equals_one_process(&row);
        let (recompute, clipping) = (Recompute::Every(1), Some(0.05));
        equals_one_process(&Row { tied: false, masked: true, recompute, clipping, ..row });
    }
    for (pp, dp, stage) in [(1, 2, 0), (2, 2, 3)] {
        let zero = Zero { stage, ..Zero::default() };
        equals_one_process(&Row { pp, dp, precision: MIXED, fused: false, zero, ..Row::default() });
    }
    let mixed = Row { precision: MIXED, dp: 2, ..Row::default() }.reference().run(Groups::single_rank());
    for (mixed, plain) in mixed.reports.iter().zip(&plain.reports) {
        assert!((mixed.loss - plain.loss).abs() < 2e-2 * plain.loss, "{} {}", mixed.loss, plain.loss);
        assert_ne!(mixed.loss.to_bits(), plain.loss.to_bits());
    }
}

/// Uneven targets give the gradients of the whole batch at once, up to rounding.
#[test]
fn micro_batches_give_the_gradients_of_the_whole_batch() {
    let row = Row { masked: true, ..Row::default() };
    let apart = row.run(Groups::single_rank());
    let parts = row.batches(0, &Groups::single_rank());
    let together = Batch::new(
        Tensor::cat(parts.iter().map(|b| b.input.ids.clone()).collect(), 0).into(),
        Targets {
            tokens: Tensor::cat(parts.iter().map(|b| b.target.tokens.clone()).collect(), 0),
            mask: Some(Tensor::cat(parts.iter().filter_map(|b| b.target.mask.clone()).collect(), 0)),
        },
        parts.iter().map(|b| b.valid_targets).sum(),
    );
    let (_, whole) = row.engine(Groups::single_rank()).unwrap().gradients(&[together], 0).unwrap();
    for (a, b) in apart.gradients.iter().zip(&whole) {
        let (a_values, b_values) = (a.data.as_slice::<f32>().unwrap(), b.data.as_slice::<f32>().unwrap());
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let difference = norm(&mut a_values.iter().zip(b_values).map(|(a, b)| a - b));
        // The attention's key biases have no true gradient, only rounding.
        let scale = norm(&mut b_values.iter().copied()).max(1e-4);
        assert!(difference <= 1e-5 * scale, "{}: {difference:e} of {scale:e}", a.name);
    }
}

/// A step's result, and the weights before and after it.
type Step = (Result<StepReport, Error>, Vec<NamedTensor>, Vec<NamedTensor>);

fn poisoned(pp: usize, on_nonfinite: NonFinite) -> Vec<Step> {
    on_threads(pp, 2, |groups| {
        let row = Row { pp, dp: 2, micro_batches: 2, masked: true, on_nonfinite, ..Row::default() };
        let rank = groups.world().rank();
        let mut engine = row.engine(groups.clone()).unwrap();
        let before = engine.tensors(0).unwrap();
        let mut batches = row.batches(0, &groups);
        if rank == 2 * pp - 1 {
            // A mask of infinity makes this rank's second loss infinite.
            let target = &mut batches[1].target;
            target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
        }
        let result = engine.step(batches, 1e-2);
        (result, before, engine.tensors(0).unwrap())
    })
}

#[test]
fn a_loss_that_is_not_finite_names_its_rank_and_leaves_the_weights() {
    for pp in [1, 3] {
        for (result, before, after) in poisoned(pp, NonFinite::Stop) {
            let message = result.unwrap_err().to_string();
            assert!(message.starts_with("step 1: the loss is not finite"), "{message}");
            let place = format!("rank {}, micro-batch 1, in the loss of block `head`", 2 * pp - 1);
            assert!(message.contains(&place), "{message}");
            same_bits(&after, &before, "after the failed step");
        }
        for (result, before, after) in poisoned(pp, NonFinite::Skip) {
            assert!(result.unwrap().skipped);
            same_bits(&after, &before, "after the skipped step");
        }
    }
}

#[test]
fn a_batch_without_valid_targets_is_an_error() {
    for pp in [1, 2] {
        let errors = on_threads(pp, 1, |groups| {
            let row = Row { pp, ..Row::default() };
            let mut batch = row.batch(0, 0);
            batch.valid_targets = 0;
            row.engine(groups).unwrap().step(vec![batch], 1e-2).unwrap_err()
        });
        assert!(
            errors.iter().all(|error| matches!(error, Error::NoTargets { step: 1, worker: None })),
            "{errors:?}"
        );
    }
}
