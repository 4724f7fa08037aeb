//! Loops that call a trainer's methods themselves.

mod between_updates;
mod draws;
mod refused;

use std::path::Path;

use brigade_core::Batch;
use brigade_launch::interrupt::Interrupt;

use super::fixture::*;
use super::sampler;
use crate::dataset::samples;
use crate::run::{Session, StartFrom};
use crate::settings::Settings;
use crate::training_setup::Training;

fn trains(session: &Session, _: Interrupt) -> anyhow::Result<f64> {
    Ok(session.train(model(), training())?.loss)
}

/// This rank's micro-batches at a position, as they are dealt out without ZeRO-3.
fn own_batches(session: &Session, (pp, dp, _): Mesh, position: u64) -> Vec<Batch<Rows, Rows>> {
    let (count, replica) = (4 / dp, session.rank() % dp);
    assert_eq!(session.world_size(), pp * dp);
    let numbers = (0..count).map(|k| sampler().global_micro_batch(position, replica * count + k).unwrap());
    let batch = |numbers: Vec<usize>| {
        let (input, target) = rows(&numbers, &session.device());
        Batch::new(input, target, numbers.len())
    };
    numbers.map(batch).collect()
}

#[test]
fn a_loop_with_its_own_batches_ends_as_train_does() {
    for mesh in [(1, 1, 0), (1, 2, 0), (2, 1, 0), (2, 2, 1)] {
        let (whole, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let settings = settings(8);
        let loss = on_mesh(whole.path(), &settings, mesh, StartFrom::Scratch, trains).unwrap();
        let own_loss = on_mesh(own.path(), &settings, mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), Training::without_data())?;
            for position in 0..8 {
                let report = trainer.step(own_batches(session, mesh, position))?.unwrap();
                assert_eq!((report.step, trainer.steps_done()), (position + 1, position + 1));
                let found = trainer.evaluate_on(&data())?;
                trainer.log("train_loss", found.loss);
                assert_eq!(found.targets, 64);
            }
            assert!(trainer.is_over() && trainer.next_batches()?.is_none());
            Ok(trainer.finish()?.loss)
        });
        assert_eq!(own_loss.unwrap(), loss);
        assert!(weights(own.path()) == weights(whole.path()), "{mesh:?}");
        let (own, whole) = (metrics(own.path()), metrics(whole.path()));
        assert_eq!(own.len(), 8);
        for (own, whole) in own.iter().zip(&whole) {
            assert_eq!((own.loss, own.learning_rate), (whole.loss, whole.learning_rate));
            assert!(own.metrics["train_loss"] > 0.0 && !whole.metrics.contains_key("train_loss"));
            assert_eq!(whole.validation_loss.is_some(), whole.step % 2 == 0);
        }
    }
}

/// As those of `train` are, on any mesh, and a run continues from them with the same weights.
#[test]
fn checkpoints_that_a_loop_does_not_save_are_saved() {
    let mut settings = settings(8);
    settings.checkpoint.asynchronous = false;
    let run = |out: &Path, mesh: Mesh, start_from: StartFrom, ends_after: u64| {
        on_mesh(out, &settings, mesh, start_from, |session: &Session, _| {
            let mut trainer = session.prepare(model(), training())?;
            while let Some(batches) = trainer.next_batches()? {
                trainer.step(batches)?;
                if trainer.steps_done() == ends_after {
                    // Killed before the next step.
                    return Ok(());
                }
            }
            trainer.finish().map(drop)
        })
        .unwrap();
    };
    let whole = tempfile::tempdir().unwrap();
    on_mesh(whole.path(), &settings, MESHES[0], StartFrom::Scratch, trains).unwrap();
    for mesh in MESHES {
        let out = tempfile::tempdir().unwrap();
        run(out.path(), mesh, StartFrom::Scratch, 5);
        assert_eq!(checkpoints(out.path()), [4, 2]);
        run(out.path(), mesh, StartFrom::Checkpoint, 9);
        assert_eq!(checkpoints(out.path()), [8, 6, 4]);
        assert!(weights(out.path()) == weights(whole.path()), "{mesh:?}");
    }
}

/// A value that is logged before its step is in the step's record, and takes no metric's name.
#[test]
fn what_is_logged_is_in_the_next_record_that_is_written() {
    let out = tempfile::tempdir().unwrap();
    on_mesh(out.path(), &settings(4), MESHES[1], StartFrom::Scratch, |session, _| {
        let training = training().metric("largest", |output: Rows, _| output.max());
        let mut trainer = session.prepare(model(), training)?;
        while let Some(batches) = trainer.next_batches()? {
            let step = trainer.steps_done() as f64;
            trainer.log("before", step);
            trainer.log("largest", 1e9);
            trainer.step(batches)?;
            trainer.log("after", step);
            trainer.log("after", step + 0.5);
        }
        trainer.finish().map(drop)
    })
    .unwrap();
    for (step, record) in metrics(out.path()).into_iter().enumerate() {
        let step = step as f64;
        assert_eq!((record.metrics["before"], record.metrics["after"]), (step, step + 0.5));
        assert!(record.metrics["largest"] < 1e3);
        assert_eq!(record.unit.as_deref(), Some("samples"));
    }
}

#[test]
fn a_validation_after_a_save_is_in_its_steps_line_and_may_be_the_best() {
    for mesh in [(1, 1, 0), (2, 2, 1)] {
        let (whole, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        on_mesh(whole.path(), &keeping_best(8), mesh, StartFrom::Scratch, trains).unwrap();
        let best = on_mesh(own.path(), &keeping_best(8), mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            while let Some(batches) = trainer.next_batches()? {
                trainer.step(batches)?;
                if trainer.save_is_due() {
                    trainer.save()?;
                }
                if trainer.evaluation_is_due() {
                    trainer.evaluate()?;
                }
            }
            Ok(trainer.finish()?.best_step)
        });
        assert_eq!(best.unwrap(), Some(2));
        assert!(weights(own.path()) == weights(whole.path()), "{mesh:?}");
        assert_eq!(checkpoints(own.path()), [8, 2]);
        let validated = |out: &Path| -> Vec<_> {
            let of = |record: brigade_report::StepRecord| (record.validation_loss, record.validation_metrics);
            metrics(out).into_iter().map(of).collect()
        };
        assert_eq!(validated(own.path()), validated(whole.path()), "{mesh:?}");
        assert_eq!(metrics(own.path()).iter().filter(|record| record.validation_loss.is_some()).count(), 4);
    }
}

#[test]
fn a_loop_that_ends_early_can_be_resumed_by_another() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut settings = settings(9);
    settings.checkpoint.every = 6;
    on_mesh(whole.path(), &settings, (1, 1, 0), StartFrom::Scratch, trains).unwrap();
    let steps = on_mesh(parts.path(), &settings, (1, 2, 3), StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        while let Some(batches) = trainer.next_batches()? {
            trainer.step(batches)?;
            if trainer.steps_done() == 5 {
                break;
            }
        }
        assert_eq!(trainer.total_steps(), 9);
        Ok(trainer.finish()?.steps)
    });
    assert_eq!((steps.unwrap(), checkpoints(parts.path())), (5, vec![5]));
    on_mesh(parts.path(), &settings, (2, 1, 0), StartFrom::Checkpoint, trains).unwrap();
    assert!(weights(parts.path()) == weights(whole.path()));
}

#[test]
fn epochs_are_a_length() {
    let (steps, epochs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let eight = Settings { schedule: Default::default(), ..settings(8) };
    on_mesh(steps.path(), &eight, (1, 1, 0), StartFrom::Scratch, trains).unwrap();
    let mut half = eight.clone();
    (half.train.steps, half.train.epochs) = (0, 0.5);
    on_mesh(epochs.path(), &half, (1, 2, 0), StartFrom::Scratch, trains).unwrap();
    assert_eq!(metrics(epochs.path()).len(), 8);
    assert!(weights(epochs.path()) == weights(steps.path()), "the learning rate follows the length");
    half.train.epochs = 0.25;
    let message =
        on_mesh(epochs.path(), &half, (1, 1, 0), StartFrom::Checkpoint, trains).unwrap_err().to_string();
    assert!(
        message.contains("train.epochs (--epochs) = 0.25") && message.contains("at step 8 already"),
        "{message}"
    );
}

#[test]
fn a_finished_run_that_is_resumed_has_its_losses() {
    let folder = tempfile::tempdir().unwrap();
    let losses = |start_from| {
        let losses = on_mesh(folder.path(), &settings(4), (1, 1, 0), start_from, |session, _| {
            let trained = session.train(model(), training())?;
            Ok((trained.loss, trained.validation_loss, trained.steps))
        });
        losses.unwrap()
    };
    let first = losses(StartFrom::Scratch);
    assert!(first.0.is_finite() && first.1.is_some() && first.2 == 4);
    assert_eq!(losses(StartFrom::Checkpoint), first);
}

#[test]
fn targets_are_counted_in_the_unit_of_the_data() {
    assert_eq!(training().reported().unit, "samples");
    assert_eq!(
        Training::<Rows, Rows, Rows>::on(samples(1, rows).counted_in("images")).reported().unit,
        "images"
    );
}

/// A loop validates what it has before it trains on what it has read.
#[test]
fn a_batch_that_is_read_before_a_save_is_trained_after_a_resume() {
    let run = |out: &Path, mesh: Mesh, start_from: StartFrom, ends_after: u64| {
        let mut settings = keeping_best(8);
        settings.checkpoint.asynchronous = false;
        on_mesh(out, &settings, mesh, start_from, |session: &Session, _| {
            let mut trainer = session.prepare(model(), training())?;
            while let Some(batches) = trainer.next_batches()? {
                trainer.evaluate()?;
                trainer.step(batches)?;
                if trainer.steps_done() == ends_after {
                    return trainer.weights();
                }
            }
            unreachable!("it ends before")
        })
        .unwrap()
    };
    let whole = run(tempfile::tempdir().unwrap().path(), MESHES[0], StartFrom::Scratch, 7);
    for (mesh, next) in [(MESHES[0], MESHES[3]), (MESHES[2], MESHES[1])] {
        let out = tempfile::tempdir().unwrap();
        run(out.path(), mesh, StartFrom::Scratch, 2);
        assert!(!checkpoints(out.path()).is_empty());
        assert!(run(out.path(), next, StartFrom::Checkpoint, 7) == whole, "{mesh:?}");
    }
}

#[test]
fn a_run_that_a_validation_ends_ends_as_others_do() {
    let mut settings = settings(8);
    settings.train.early_stopping_patience = 1;
    settings.optimizer.learning_rate = 5.0;
    let out = tempfile::tempdir().unwrap();
    let stopped = on_mesh(out.path(), &settings, MESHES[4], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        while let Some(batches) = trainer.next_batches()? {
            trainer.evaluate()?;
            let (step, is_over) = (trainer.steps_done(), trainer.is_over());
            let report = trainer.step(batches)?;
            assert_eq!((report.is_none(), trainer.steps_done()), (is_over, step + u64::from(!is_over)));
        }
        let said = trainer.step(own_batches(session, MESHES[4], 0)).err().map(|error| error.to_string());
        assert!(said.is_none_or(|said| said.contains(", because ")));
        Ok(trainer.finish()?.stopped.is_some())
    });
    assert!(stopped.unwrap());
    assert!(!weights(out.path()).is_empty());
}
