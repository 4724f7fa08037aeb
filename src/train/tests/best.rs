//! Early stopping and the best checkpoint.

use std::path::Path;

use super::fixture::*;
use crate::error::Preempted;
use crate::run::{Session, StartFrom};
use crate::settings::{OnFailedSave, Settings};
use crate::train::Trained;
use crate::training_setup::Control;

/// How a run ended: its steps, its best step, and whether it was stopped.
type End = (u64, Option<u64>, bool);

fn end(trained: &Trained<Rows, Rows, Rows>) -> End {
    (trained.steps, trained.best_step, trained.stopped.is_some())
}

/// Trains on a mesh; the machine is taken away in step `preempted_in`.
fn train(
    out: &Path,
    settings: &Settings,
    mesh: Mesh,
    start_from: StartFrom,
    preempted_in: u64,
) -> anyhow::Result<End> {
    on_mesh(out, settings, mesh, start_from, |session, interrupt| {
        let training = training().on_step(move |step| {
            if step.step == preempted_in {
                interrupt.preempt();
            }
        });
        Ok(end(&session.train(model(), training)?))
    })
}

/// Validations that never change, three of which may be no better than the best.
fn patient() -> Settings {
    let mut settings = settings(20);
    settings.optimizer.learning_rate = 0.0;
    settings.train.early_stopping_patience = 3;
    settings
}

#[test]
fn patience_ends_a_run_at_the_same_step_on_every_mesh() {
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        let ended = train(folder.path(), &patient(), mesh, StartFrom::Scratch, 0).unwrap();
        assert_eq!(ended, (8, None, true), "{mesh:?}: the best at step 2, then 4, 6, 8");
        assert_eq!(metrics(folder.path()).len(), 8);
        let again = train(folder.path(), &patient(), mesh, StartFrom::Checkpoint, 0).unwrap();
        assert_eq!(again, ended);
        assert_eq!(metrics(folder.path()).len(), 8, "nothing is trained");
    }
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &patient(), MESHES[0], StartFrom::Scratch, 0).unwrap();
    let mut more = patient();
    more.train.early_stopping_patience = 5;
    let ended = train(folder.path(), &more, MESHES[1], StartFrom::Checkpoint, 0).unwrap();
    assert_eq!(ended, (12, None, true), "more patience trains on");
}

#[test]
fn a_run_that_was_stopped_in_between_is_as_patient() {
    for (preempted_in, mesh) in [(3, MESHES[1]), (4, MESHES[3]), (5, MESHES[4]), (7, MESHES[2])] {
        let folder = tempfile::tempdir().unwrap();
        let preempted = train(folder.path(), &patient(), mesh, StartFrom::Scratch, preempted_in).unwrap_err();
        assert!(preempted.is::<Preempted>(), "{preempted:#}");
        let ended = train(folder.path(), &patient(), MESHES[0], StartFrom::Checkpoint, 0).unwrap();
        assert_eq!(ended, (8, None, true), "preempted in step {preempted_in}");
    }
}

#[test]
fn the_best_checkpoint_stays_and_its_weights_are_the_runs() {
    let two_steps = tempfile::tempdir().unwrap();
    train(two_steps.path(), &settings(2), MESHES[0], StartFrom::Scratch, 0).unwrap();
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        let ended = train(folder.path(), &keeping_best(10), mesh, StartFrom::Scratch, 0).unwrap();
        assert_eq!((ended, checkpoints(folder.path())), ((10, Some(2), false), vec![10, 2]), "{mesh:?}");
        let losses: Vec<f64> =
            metrics(folder.path()).iter().filter_map(|record| record.validation_loss).collect();
        assert!(losses.iter().skip(1).all(|loss| *loss < losses[0]), "{losses:?}");
        assert!(weights(folder.path()) == weights(two_steps.path()), "{mesh:?}");
    }
}

#[test]
fn a_resumed_run_has_the_same_best_checkpoint() {
    let two_steps = tempfile::tempdir().unwrap();
    train(two_steps.path(), &settings(2), MESHES[0], StartFrom::Scratch, 0).unwrap();
    for (preempted_in, mesh) in [(2, MESHES[1]), (5, MESHES[4])] {
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), &keeping_best(10), mesh, StartFrom::Scratch, preempted_in).unwrap_err();
        let ended = train(folder.path(), &keeping_best(10), MESHES[2], StartFrom::Checkpoint, 0).unwrap();
        assert_eq!((ended, checkpoints(folder.path())), ((10, Some(2), false), vec![10, 2]));
        assert!(weights(folder.path()) == weights(two_steps.path()), "preempted in step {preempted_in}");
    }
}

#[test]
fn a_hook_says_which_weights_are_the_best() {
    let three_steps = tempfile::tempdir().unwrap();
    train(three_steps.path(), &settings(3), MESHES[0], StartFrom::Scratch, 0).unwrap();
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(10);
        (settings.checkpoint.keep, settings.checkpoint.load_best_at_end) = (1, true);
        let ended = on_mesh(folder.path(), &settings, mesh, StartFrom::Scratch, |session, _| {
            let best = |step: &brigade_core::StepReport| match step.step {
                3 => Control::SaveBest,
                _ => Control::Continue,
            };
            Ok(end(&session.train(model(), training().on_step(best))?))
        });
        assert_eq!((ended.unwrap(), checkpoints(folder.path())), ((10, Some(3), false), vec![10, 3]));
        assert!(weights(folder.path()) == weights(three_steps.path()), "{mesh:?}");
    }
}

/// Marks the weights of steps 2 and 4 as the best; `act` does something else after each step, on rank 0.
fn with_two_best(
    out: &Path,
    mesh: Mesh,
    act: impl Fn(u64) + Clone + Send + Sync + 'static,
) -> (End, Vec<f32>) {
    let mut settings = settings(6);
    (settings.checkpoint.keep, settings.checkpoint.load_best_at_end) = (1, true);
    (settings.checkpoint.on_failure, settings.checkpoint.asynchronous) = (OnFailedSave::Continue, false);
    let ended = on_mesh(out, &settings, mesh, StartFrom::Scratch, |session, _| {
        let act = act.clone();
        let hook = move |step: &brigade_core::StepReport| {
            act(step.step);
            if matches!(step.step, 2 | 4) { Control::SaveBest } else { Control::Continue }
        };
        let trained = session.train(model(), training().on_step(hook))?;
        Ok((end(&trained), predicted(session, trained)?))
    });
    ended.unwrap()
}

/// What the weights that a run ended with in memory make of a sample.
fn predicted(session: &Session, mut trained: Trained<Rows, Rows, Rows>) -> anyhow::Result<Vec<f32>> {
    let output = trained.predict(rows(&[0], &session.device()).0)?;
    Ok(output.into_data().try_to_vec()?)
}

/// The file of weights after a number of steps, and what they predict.
fn after(steps: u64) -> (Vec<u8>, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let end = on_mesh(folder.path(), &settings(steps), MESHES[0], StartFrom::Scratch, |session, _| {
        predicted(session, session.train(model(), training())?)
    });
    (weights(folder.path()), end.unwrap())
}

#[test]
fn the_best_checkpoint_stays_where_a_better_one_cannot_be_saved() {
    let two_steps = after(2);
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        let (here, away) = (folder.path().join("checkpoints"), folder.path().join("away"));
        let (ended, predicted) = with_two_best(folder.path(), mesh, move |step| match step {
            4 => {
                std::fs::rename(&here, &away).unwrap();
                std::fs::write(&here, "not a folder").unwrap();
            }
            5 => {
                std::fs::remove_file(&here).unwrap();
                std::fs::rename(&away, &here).unwrap();
            }
            _ => {}
        });
        assert_eq!((ended, checkpoints(folder.path())), ((6, Some(2), false), vec![6, 2]), "{mesh:?}");
        assert!((weights(folder.path()), predicted) == two_steps, "{mesh:?}");
    }
}

#[test]
fn a_best_checkpoint_that_cannot_be_loaded_leaves_the_last_weights() {
    let six_steps = after(6);
    for (mesh, is_removed) in [(MESHES[0], true), (MESHES[0], false), (MESHES[2], true), (MESHES[4], false)] {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().join("checkpoints");
        let (ended, predicted) = with_two_best(folder.path(), mesh, move |step| {
            for checkpoint in std::fs::read_dir(&here).into_iter().flatten().filter(|_| step == 6) {
                let checkpoint = checkpoint.unwrap().path();
                match is_removed {
                    true => std::fs::remove_dir_all(checkpoint).unwrap(),
                    false => damage(&checkpoint),
                }
            }
        });
        assert_eq!(ended, (6, Some(4), false), "{mesh:?}");
        assert!((weights(folder.path()), predicted) == six_steps, "{mesh:?}, removed: {is_removed}");
    }
}

/// Changes the last byte of each rank's file.
fn damage(checkpoint: &Path) {
    let files: Vec<_> = std::fs::read_dir(checkpoint).unwrap().map(|file| file.unwrap().path()).collect();
    let shards: Vec<_> = files.iter().filter(|file| file.extension().is_none_or(|it| it != "json")).collect();
    assert!(!shards.is_empty(), "{files:?}");
    for shard in shards {
        let mut bytes = std::fs::read(shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(shard, bytes).unwrap();
    }
}
