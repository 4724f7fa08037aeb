//! What is saved, restored, validated and kept at outer steps, and not between them.

use std::sync::Arc;

use brigade::core::{
    Fragments, Groups, NonFinite, OuterDtype, StateReader, Strategy, Synchronous, saved_workers,
};
use brigade::models::Logits;

use super::{MICRO_BATCHES, averaging, diloco, rows, streaming};
use crate::mesh::on_mesh;
use crate::resume::{Saved, every_row_goes_on_from_every_row, snapshot};
use crate::row::{RATE, Row};

/// After training, the blocks have the model's values.
#[test]
fn blocks_end_with_what_workers_have_in_common() {
    let strategy = streaming(4, OuterDtype::F32, Some(Fragments { count: 2, overlap: 1, mixing: 0.5 }));
    let row = Row { strategy, steps: 4, workers: 2, micro_batches: MICRO_BATCHES, ..Row::default() };
    let ranks = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        (0..row.steps).for_each(|step| drop(row.step(&mut engine, step, &groups)));
        let input = || row.batch(99, 0).input;
        let predicted = |logits: Logits| logits.whole().into_data();
        let own = predicted(engine.chain().predict(input()).unwrap());
        let (model, refused) = (predicted(engine.predict(input()).unwrap()), engine.replica().err().unwrap());
        assert!(refused.to_string().contains("workers hold different values"), "{refused}");
        engine.keep_model_values().unwrap();
        let kept = predicted(engine.chain().predict(input()).unwrap());
        let again = predicted(engine.predict(input()).unwrap());
        (own, model, kept, again)
    });
    for (own, model, kept, again) in &ranks {
        assert!(own != model && kept == model && again == model, "the model's values");
        assert!(*model == ranks[0].1, "on every worker");
    }
}

/// A rank whose validation fails says so at once, and has its own values when it computes again.
#[test]
fn a_validation_that_fails_is_told_at_once() {
    let strategy = streaming(2, OuterDtype::F32, Some(Fragments { count: 2, overlap: 0, mixing: 0.5 }));
    let base = Row { strategy, steps: 4, tied: true, ..Row::default() };
    let trained = |fails: bool| {
        let row = rows(&base).swap_remove(0);
        Saved::of(on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            for step in 0..row.steps {
                if row.step(&mut engine, step, &groups).is_some() && fails {
                    let error = engine.evaluate(1, |_| Err("no such file".into())).unwrap_err();
                    assert!(error.to_string().contains("no such file"), "{error}");
                }
            }
            snapshot(&engine)
        }))
    };
    trained(true).same(&trained(false), "after validations that failed");
}

/// Validation is of the values that the workers have in common, and changes nothing of their own.
#[test]
fn validation_of_fragments_is_of_what_workers_have_in_common() {
    let strategy = streaming(2, OuterDtype::F32, Some(Fragments { count: 2, overlap: 0, mixing: 0.5 }));
    let base = Row { strategy, steps: 4, tied: true, ..Row::default() };
    let mut found = None;
    for row in rows(&base) {
        let validates = |validates: bool| {
            on_mesh(&row.mesh(), |groups| {
                let mut engine = row.engine(groups.clone()).unwrap();
                let mut losses = Vec::new();
                for step in 0..row.steps {
                    if row.step(&mut engine, step, &groups).is_some() && validates {
                        losses.push(engine.evaluate(1, |_| Ok(row.batch(99, 0))).unwrap().loss.to_bits());
                    }
                }
                (losses, snapshot(&engine))
            })
        };
        let (losses, saved): (Vec<_>, Vec<_>) = validates(true).into_iter().unzip();
        Saved::of(saved)
            .same(&Saved::of(validates(false).into_iter().map(|(_, saved)| saved).collect()), "validation");
        let first = found.get_or_insert_with(|| losses[0].clone());
        assert!(losses.iter().all(|losses| losses == first), "{row:?}");
    }
}

#[test]
fn every_mesh_inside_of_workers_goes_on_from_every_other() {
    for (strategy, tied) in [
        (averaging(2), true),
        (diloco(1, OuterDtype::F32), false),
        (diloco(2, OuterDtype::Bf16), true),
        (diloco(2, OuterDtype::Int8), false),
        (streaming(2, OuterDtype::F32, Some(Fragments { count: 2, overlap: 0, mixing: 0.5 })), true),
        (streaming(2, OuterDtype::Int8, Some(Fragments { count: 1, overlap: 1, mixing: 0.5 })), false),
    ] {
        let rows = rows(&Row { strategy, tied, masked: true, ..Row::default() });
        every_row_goes_on_from_every_row(&[&rows[..1], &rows[2..5]].concat());
    }
}

/// A state of a number of workers.
fn saved_by(workers: usize, strategy: &Arc<dyn Strategy>) -> Saved {
    let row = Row { workers, micro_batches: 1, strategy: strategy.clone(), ..Row::default() };
    Saved::of(on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        (0..2).for_each(|step| drop(row.step(&mut engine, step, &groups)));
        snapshot(&engine)
    }))
}

#[test]
fn another_number_of_workers_goes_on_from_the_states_of_those_that_there_were() {
    let plain: Arc<dyn Strategy> = Arc::new(Synchronous::default());
    for (from, to, strategy) in
        [(4, 2, averaging(2)), (2, 4, diloco(2, OuterDtype::F32)), (1, 2, diloco(2, OuterDtype::F32))]
    {
        let saved = saved_by(from, if from == 1 { &plain } else { &strategy });
        let row = Row { workers: to, micro_batches: 1, strategy, ..Row::default() };
        let taken = on_mesh(&row.mesh(), |groups| {
            let mut engine = row.engine(groups.clone()).unwrap();
            engine.restore(2, &mut &saved).unwrap();
            let taken = snapshot(&engine);
            (2..4).for_each(|step| drop(row.step(&mut engine, step, &groups)));
            taken
        });
        let taken = Saved::of(taken);
        assert_eq!(taken.parameters(), saved.parameters());
        for worker in 0..to {
            let [own, before] =
                [(&taken, worker), (&saved, worker % from)].map(|(saved, worker)| saved.of_worker(worker));
            assert!(!own.is_empty() && own == before, "worker {worker} of {to} from {from}");
        }
    }
}

/// A worker that has made no update yet has no state of its optimizer, and does not take another worker's.
#[test]
fn a_worker_without_a_state_goes_on_without_one() {
    let row = Row {
        workers: 2,
        micro_batches: 1,
        strategy: averaging(2),
        masked: true,
        on_nonfinite: NonFinite::Skip,
        ..Row::default()
    };
    let saved = Saved::of(on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        for step in 0..2 {
            let mut batches = row.batches(step, &groups);
            if groups.world().rank() == 1 {
                let target = &mut batches[0].target;
                target.mask = target.mask.take().map(|mask| mask * f32::INFINITY);
            }
            match engine.synchronizes() {
                true => drop(engine.step(batches, RATE).unwrap()),
                false => engine.inner_step(batches, RATE).unwrap(),
            }
        }
        snapshot(&engine)
    }));
    assert!(!saved.of_worker(0).is_empty() && saved.of_worker(1).is_empty());
    assert_eq!(saved_workers((&saved).units()), 2);
    let taken = Saved::of(on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        // What an engine held before does not matter.
        row.step(&mut engine, 0, &groups);
        engine.restore(2, &mut &saved).unwrap();
        snapshot(&engine)
    }));
    taken.same(&saved, "a worker without a state");
}

#[test]
fn nothing_is_saved_or_collected_between_outer_steps() {
    let row = Row { workers: 2, strategy: averaging(2), micro_batches: 1, ..Row::default() };
    let errors = on_mesh(&row.mesh(), |groups| {
        let mut engine = row.engine(groups.clone()).unwrap();
        let wrong = engine.step(row.batches(0, &groups), RATE).unwrap_err().to_string();
        assert!(wrong.contains("call `Engine::inner_step`"), "{wrong}");
        assert!(row.step(&mut engine, 0, &groups).is_none());
        let wrong = engine.inner_step(row.batches(1, &groups), RATE).unwrap_err().to_string();
        assert!(wrong.contains("call `Engine::step`"), "{wrong}");
        let told = [
            engine.snapshot().err().unwrap(),
            engine.tensors(0).unwrap_err(),
            engine.evaluate(1, |_| Ok(row.batch(9, 0))).unwrap_err(),
        ];
        let saved = Saved::of(vec![snapshot(&Row::default().engine(Groups::single_rank()).unwrap())]);
        let refused = engine.restore(3, &mut &saved).unwrap_err().to_string();
        assert!(refused.contains("cannot resume from step 3: it must be a multiple of 2"), "{refused}");
        told.map(|error| error.to_string())
    });
    for error in errors.iter().flatten() {
        assert!(
            error.contains(
                "after step 1 each worker has values of its own; they synchronise after every 2 steps"
            ),
            "{error}"
        );
    }
}
