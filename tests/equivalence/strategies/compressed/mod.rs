//! Gradients that travel as codes: the same bits on all ranks, in every run, for every stage of ZeRO that sums the same, with any number
//! of pipeline stages, and as a plain implementation in one process makes them.

mod left_out;
mod plain;

use std::sync::Arc;

use brigade::core::compress::{Compression, Method, Rounding};
use brigade::core::{Compressed, ReduceEvery, Strategy, Zero};

use crate::footprint::is_as_planned;
use crate::mesh::{on_mesh, same_bits};
use crate::row::{Outcome, Row};

/// Of every method, with numbers that fit a small model.
pub fn methods() -> Vec<Compression> {
    let of = |method| Compression { method, ratio: 0.1, rank: 2, block_size: 64, ..Compression::default() };
    let methods = Method::ALL.into_iter().filter(|method| *method != Method::None).map(of);
    let drawn = [Method::Int8, Method::Int4]
        .map(|method| Compression { rounding: Rounding::Stochastic, ..of(method) });
    methods.chain(drawn).collect()
}

pub fn compressed(compression: Compression, row: Row) -> Row {
    let strategy = Arc::new(Compressed { every: row.strategy.period(), compression });
    Row { strategy, compression, ..row }
}

fn zero(stage: u8) -> Zero {
    Zero { stage, ..Zero::default() }
}

/// ZeRO that sums gradients once a step.
fn once(stage: u8) -> Zero {
    Zero { reduce_every: ReduceEvery::Step, ..zero(stage) }
}

fn run(row: &Row) -> Vec<Outcome> {
    let outcomes = on_mesh(&row.mesh(), |groups| row.run(groups));
    for outcome in &outcomes {
        same_bits(&outcome.weights, &outcomes[0].weights, &format!("ranks of {row:?}"));
    }
    outcomes
}

fn equal(a: &Outcome, b: &Outcome, what: &str) {
    assert_eq!(a.reports.len(), b.reports.len());
    for (a, b) in a.reports.iter().zip(&b.reports) {
        assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "loss of {what}");
        assert_eq!(a.grad_norm.to_bits(), b.grad_norm.to_bits(), "norm of {what}");
    }
    same_bits(&a.gradients, &b.gradients, &format!("gradients of {what}"));
    same_bits(&a.weights, &b.weights, &format!("weights of {what}"));
}

#[test]
fn every_run_of_a_mesh_has_the_same_bits_and_pipelines_change_none() {
    let base =
        Row { micro_batches: 2, tied: true, masked: true, clipping: Some(0.3), steps: 3, ..Row::default() };
    let exact = run(&Row { dp: 2, ..base.clone() });
    for compression in methods() {
        for (dp, zero) in [(2, zero(0)), (4, zero(0)), (2, once(3)), (4, once(1))] {
            let row = compressed(compression, Row { dp, zero, ..base.clone() });
            let outcomes = run(&row);
            equal(&outcomes[0], &run(&row)[0], &format!("{row:?} twice"));
            let pipelined = Row { pp: 2, bucket_bytes: 1 << 20, ..row.clone() };
            equal(&outcomes[0], &run(&pipelined)[0], &format!("{pipelined:?}"));
            let (first, last) = (&exact[0].reports[0], outcomes[0].reports.last().unwrap());
            assert!(last.loss < first.loss * 1.2, "it trains: {} after {} of {row:?}", last.loss, first.loss);
            if dp == 2 {
                let differs =
                    |(a, b): (&brigade::core::NamedTensor, &brigade::core::NamedTensor)| a.data != b.data;
                assert!(outcomes[0].weights.iter().zip(&exact[0].weights).any(differs), "{row:?}");
            }
        }
    }
}

/// ZeRO codes what each rank sends, whatever else it shards; factors are summed whole, so that also plain data parallelism is the same.
#[test]
fn stages_of_zero_that_sum_the_same_have_the_same_bits() {
    for compression in methods() {
        for dp in [2, 4] {
            let base = Row { dp, micro_batches: 2, steps: 3, ..Row::default() };
            let reference = run(&compressed(compression, Row { zero: zero(1), ..base.clone() }));
            let factors = compression.method == Method::PowerSgd;
            for zero in [once(2), once(3)].into_iter().chain(factors.then(|| zero(0))) {
                let row = compressed(compression, Row { zero, ..base.clone() });
                equal(&run(&row)[0], &reference[0], &format!("{row:?}"));
            }
            if factors {
                continue;
            }
            // One micro-batch is a step.
            let [whole, parts, gathered] = [1, 2, 3].map(|stage| {
                compressed(compression, Row { zero: zero(stage), micro_batches: 1, ..base.clone() })
            });
            let reference = run(&whole);
            equal(&run(&parts)[0], &reference[0], &format!("{parts:?}"));
            equal(&run(&gathered)[0], &reference[0], &format!("{gathered:?}"));
        }
    }
}

#[test]
fn replicas_of_shards_send_codes_between_them() {
    for compression in methods().into_iter().filter(|compression| compression.method != Method::PowerSgd) {
        let base = Row { replicate: 2, dp: 2, micro_batches: 2, steps: 3, ..Row::default() };
        let reference = run(&compressed(compression, Row { zero: zero(1), ..base.clone() }));
        // Inside a shard, sums are exact, so that it makes no difference when they are made.
        for (pp, zero, bucket_bytes) in [(1, zero(2), 0), (2, once(3), 2000), (1, zero(3), 1 << 20)] {
            let row = compressed(compression, Row { pp, zero, bucket_bytes, ..base.clone() });
            equal(&run(&row)[0], &reference[0], &format!("{row:?}"));
        }
    }
}

#[test]
fn a_warm_up_is_plain_training() {
    for method in [Method::Int8, Method::PowerSgd] {
        let compression = Compression { method, warmup_steps: 2, ..Compression::default() };
        let row = Row { dp: 2, micro_batches: 2, ..Row::default() };
        equal(&run(&compressed(compression, row.clone()))[0], &run(&row)[0], "two steps of warm-up");
        let longer = Row { steps: 3, ..row };
        let [coded, plain] =
            [compressed(compression, longer.clone()), longer].map(|row| run(&row).swap_remove(0));
        assert_eq!(
            coded.reports[2].loss.to_bits(),
            plain.reports[2].loss.to_bits(),
            "the loss before the update"
        );
        assert_ne!(coded.reports[2].grad_norm.to_bits(), plain.reports[2].grad_norm.to_bits());
    }
}

#[test]
fn several_steps_up_to_an_update() {
    let strategy: Arc<dyn Strategy> = Arc::new(Compressed { every: 2, compression: methods()[2] });
    for zero in [zero(0), zero(2), once(3)] {
        let row =
            Row { dp: 2, micro_batches: 1, zero, strategy: strategy.clone(), steps: 6, ..Row::default() };
        equal(&run(&row)[0], &run(&Row { pp: 2, ..row.clone() })[0], &format!("{row:?}"));
    }
}

/// Numbers of fp16 have a scale, without which these would be infinite, or zero.
#[test]
fn gradients_of_any_size_travel_in_16_bits() {
    for factor in [1e9f64, 1e-9] {
        let norm = |row: &Row| {
            let norms = on_mesh(&row.mesh(), |groups| {
                let mut batches = row.batches(0, &groups);
                let target = &mut batches[0].target;
                target.mask = target.mask.take().map(|mask| mask * factor);
                row.engine(groups.clone()).unwrap().step(batches, 1e-2).unwrap().grad_norm
            });
            norms[0]
        };
        let row = Row { dp: 2, micro_batches: 1, masked: true, ..Row::default() };
        let exact = norm(&row);
        for method in [Method::Fp16, Method::Bf16] {
            let compression = Compression { method, ..Compression::default() };
            let coded = norm(&compressed(compression, row.clone()));
            assert!((coded / exact - 1.0).abs() < 0.01, "{method}: {coded:e}, not {exact:e}");
        }
    }
}

#[test]
fn bytes_are_as_planned() {
    for compression in methods() {
        let factors = compression.method == Method::PowerSgd;
        for (pp, dp, micro_batches, zero) in [
            (1, 2, 1, zero(0)),
            (1, 2, 4, zero(0)),
            (2, 2, 4, zero(0)),
            (1, 4, 3, once(1)),
            (2, 2, 2, once(3)),
            (1, 2, 4, once(2)),
            (1, 2, 4, zero(2)),
            (2, 4, 2, zero(3)),
            (1, 1, 2, zero(0)),
        ] {
            let each = zero.reduces_each_micro_batch();
            for tied in [false, true].into_iter().filter(|_| !(factors && each)) {
                is_as_planned(&compressed(
                    compression,
                    Row { pp, dp, micro_batches, zero, tied, ..Row::default() },
                ));
            }
        }
        for zero in [zero(1), zero(3)].into_iter().filter(|_| !factors) {
            let row = Row { replicate: 2, dp: 2, micro_batches: 2, zero, ..Row::default() };
            is_as_planned(&compressed(compression, row));
        }
    }
}
