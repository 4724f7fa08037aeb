//! Hooks, and what they decide for all ranks.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use burn::tensor::Tensor;

use super::fixture::*;
use crate::error::AgreedError;
use crate::run::StartFrom;
use crate::training_setup::Control;

type Seen = Arc<Mutex<Vec<(u64, f64)>>>;

fn push(seen: &Seen, step: u64, value: f64) {
    seen.lock().unwrap().push((step, value));
}

/// The share of outputs above 0.
fn positive(output: Rows, _: Rows) -> Tensor<1> {
    output.greater_elem(0.0).float().sum() / WIDTH as f32
}

#[test]
fn hooks_and_metrics_see_the_same_on_every_mesh() {
    let run = |mesh| {
        let folder = tempfile::tempdir().unwrap();
        let (steps, validations) = (Seen::default(), Seen::default());
        on_mesh(folder.path(), &settings(5), mesh, StartFrom::Scratch, |session, _| {
            let (steps, validations) = (steps.clone(), validations.clone());
            let training = training()
                .metric("positive", positive)
                .on_step(move |step| push(&steps, step.step, step.metrics["positive"]))
                .on_validation(move |found| {
                    push(&validations, found.step, found.loss);
                    push(&validations, found.targets, found.metrics["positive"]);
                });
            session.train(model(), training)
        })
        .unwrap();
        let records = metrics(folder.path());
        assert_eq!(records.len(), 5);
        let named = |record: &brigade_report::StepRecord| (record.step, record.metrics["positive"]);
        let steps = steps.lock().unwrap().clone();
        assert_eq!(records.iter().map(named).collect::<Vec<_>>(), steps);
        assert!(records[1].validation_metrics.contains_key("positive"));
        (steps, validations.lock().unwrap().clone())
    };
    let (steps, validations) = run(MESHES[0]);
    assert_eq!(validations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 10, 4, 10, 5, 10]);
    for mesh in &MESHES[1..] {
        assert_eq!(run(*mesh), (steps.clone(), validations.clone()), "{mesh:?}");
    }
}

#[test]
fn a_hook_that_stops_ends_the_run_at_the_same_step_on_every_mesh() {
    let reference = tempfile::tempdir().unwrap();
    on_mesh(reference.path(), &settings(3), MESHES[0], StartFrom::Scratch, |session, _| {
        session.train(model(), training())
    })
    .unwrap();
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        let train = |start_from| {
            let ended = on_mesh(folder.path(), &settings(9), mesh, start_from, |session, _| {
                let stop = |step: &brigade_core::StepReport| match step.step {
                    3 => Control::Stop,
                    _ => Control::Continue,
                };
                let trained = session.train(model(), training().on_step(stop))?;
                Ok((trained.steps, trained.stopped, trained.loss, trained.validation_loss))
            });
            let ended = ended.unwrap();
            assert!(weights(folder.path()) == weights(reference.path()), "{mesh:?}");
            let records = metrics(folder.path());
            assert_eq!(
                (records.len(), records[2].validation_loss.is_some()),
                (3, true),
                "validated at the end"
            );
            ended
        };
        let ended = train(StartFrom::Scratch);
        assert_eq!((ended.0, ended.1.as_deref()), (3, Some("a hook ended the run")));
        assert_eq!(checkpoints(folder.path()), [3, 2]);
        assert_eq!(train(StartFrom::Checkpoint), ended, "nothing is left to do");
    }
}

#[test]
fn a_validation_hook_decides_for_all_ranks() {
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        let ended = on_mesh(folder.path(), &settings(9), mesh, StartFrom::Scratch, |session, _| {
            let training = training()
                .on_validation(|found| Ok(if found.step == 4 { Control::Stop } else { Control::SaveBest }));
            let trained = session.train(model(), training)?;
            Ok((trained.steps, trained.best_step, trained.stopped.is_some()))
        });
        assert_eq!(ended.unwrap(), (4, Some(2), true), "{mesh:?}");
    }
}

#[test]
fn ranks_wait_for_a_hook_longer_than_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(3);
    settings.comm.train_timeout_seconds = 1.0;
    let ended = on_mesh(folder.path(), &settings, (1, 2, 0), StartFrom::Scratch, |session, _| {
        let pause = |step: u64| {
            if step == 2 {
                thread::sleep(Duration::from_millis(2500));
            }
        };
        let training = training().on_step(move |step| {
            pause(step.step);
            Ok(())
        });
        let training = training.on_validation(move |found| {
            pause(found.step);
            Ok(Control::Continue)
        });
        Ok(session.train(model(), training)?.steps)
    });
    assert_eq!(ended.unwrap(), 3);
}

#[test]
fn an_error_of_a_hook_ends_all_ranks_with_its_text() {
    for (mesh, at_validation) in MESHES.into_iter().flat_map(|mesh| [(mesh, false), (mesh, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let error = on_mesh(folder.path(), &settings(9), mesh, StartFrom::Scratch, |session, _| {
            let (fails, rank) = (at_validation, session.rank());
            let fail = move |step: u64, now: bool| -> anyhow::Result<()> {
                assert_eq!(rank, 0, "hooks run on rank 0 alone");
                if step >= 2 && now { bail!("no room for step {step}") } else { Ok(()) }
            };
            let training = training()
                .on_step(move |step| fail(step.step, !fails))
                .on_validation(move |found| fail(found.step, fails));
            let error = session.train(model(), training).map(drop).unwrap_err();
            assert!(error.is::<AgreedError>(), "rank {}: {error:#}", session.rank());
            Err::<(), _>(error)
        });
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "step 2: a hook failed: no room for step 2", "{mesh:?}");
    }
}
