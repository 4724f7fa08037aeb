//! Steps that are skipped or fail in some workers.

use brigade::core::{Error, Fragments, NonFinite, OuterDtype};

use super::{averaging, streaming};
use crate::mesh::{on_mesh, same_bits};
use crate::row::{RATE, Row, TokenBatch};

/// A worker that skips a step goes on alone; the others do not wait for it, and all learn of it when they synchronise.
#[test]
fn a_worker_skips_a_step_by_itself() {
    let row = Row {
        workers: 2,
        dp: 2,
        micro_batches: 1,
        strategy: averaging(2),
        masked: true,
        on_nonfinite: NonFinite::Skip,
        ..Row::default()
    };
    let reports = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let mut batches = row.batches(0, &groups);
        if groups.world().rank() == 3 {
            let target = &mut batches[0].target;
            target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
        }
        engine.inner_step(batches, RATE).unwrap();
        row.step(&mut engine, 1, &groups).unwrap()
    });
    for report in &reports {
        assert_eq!((report.skipped, report.outer.unwrap().skipped), (false, 1));
        assert!(report.loss.is_finite() && report.grad_norm.is_finite());
        assert_eq!(report.loss.to_bits(), reports[0].loss.to_bits());
    }
}

/// The outer optimizer's momentum does not move the model after a round in which nobody made an update.
#[test]
fn a_round_in_which_all_skip_changes_nothing() {
    let fragments = |count, overlap| Some(Fragments { count, overlap, mixing: 0.5 });
    let (inner_steps, on_nonfinite) = (4, NonFinite::Skip);
    for (fragments, pp, dp) in
        [(None, 1, 1), (fragments(2, 0), 1, 2), (fragments(2, 1), 2, 1), (fragments(1, 3), 2, 2)]
    {
        let strategy = streaming(inner_steps, OuterDtype::F32, fragments);
        let row = Row {
            workers: 2,
            pp,
            dp,
            micro_batches: 1,
            strategy,
            masked: true,
            on_nonfinite,
            ..Row::default()
        };
        let weights = on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            let mut after_rounds = Vec::new();
            for step in 0..3 * inner_steps {
                let mut batches = row.batches(step, &groups);
                if step / inner_steps == 1 {
                    let target = &mut batches[0].target;
                    target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
                }
                if (step + 1).is_multiple_of(inner_steps) {
                    let report = engine.step(batches, RATE).unwrap();
                    assert_eq!(report.skipped, step / inner_steps == 1, "step {step} of {row:?}");
                    after_rounds.push(engine.tensors(0).unwrap());
                } else {
                    engine.inner_step(batches, RATE).unwrap();
                }
            }
            after_rounds
        });
        let [first, second, third] = &weights[0][..] else { panic!("three rounds") };
        same_bits(second, first, &format!("{row:?}"));
        assert!(third.iter().zip(second).any(|(a, b)| a.data != b.data), "{row:?}");
    }
}

/// What a step gives on each rank of two workers with two stages, if the micro-batch of the second worker is changed: the error, and whether it is
/// agreed on all ranks.
fn of_a_changed_worker(change: impl Fn(&mut TokenBatch) + Sync) -> Vec<Result<(), (bool, String)>> {
    let row =
        Row { workers: 2, pp: 2, micro_batches: 1, strategy: averaging(2), masked: true, ..Row::default() };
    on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let mut batches = row.batches(0, &groups);
        if groups.world().rank() >= 2 {
            change(&mut batches[0]);
        }
        engine.inner_step(batches, RATE).map_err(|error| (error.is_agreed(), error.to_string()))
    })
}

/// The failure is the worker's alone, with the rank of all ranks.
#[test]
fn a_loss_that_is_not_finite_names_the_rank_of_all() {
    let results = of_a_changed_worker(|batch| {
        let mask = batch.target.mask.take();
        batch.target.mask = mask.map(|mask| mask * f32::INFINITY);
    });
    assert!(results[..2].iter().all(Result::is_ok), "{results:?}");
    for result in &results[2..] {
        let (agreed, said) = result.as_ref().unwrap_err();
        assert!(!agreed && said.contains("rank 3, micro-batch 0, in the loss"), "{results:?}");
    }
}

#[test]
fn a_worker_without_valid_targets_is_named() {
    let results = of_a_changed_worker(|batch| batch.valid_targets = 0);
    assert!(results[..2].iter().all(Result::is_ok), "{results:?}");
    for result in &results[2..] {
        let (agreed, said) = result.as_ref().unwrap_err();
        let part = "step 1: worker 1's part of the global batch holds no valid target";
        assert!(!agreed && said.contains(part), "{results:?}");
    }
}

#[test]
fn workers_need_a_strategy_with_outer_steps() {
    let row = Row { workers: 2, micro_batches: 1, ..Row::default() };
    let errors = on_mesh(&row.mesh(), |groups| row.engine(groups).err().unwrap());
    assert!(
        errors.iter().all(|error| matches!(error, Error::Model(why) if why.contains("has no outer steps")))
    );
}
