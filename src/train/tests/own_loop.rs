//! Loops that call a trainer's methods themselves.

use std::path::Path;
use std::process::Command;

use brigade_core::Batch;
use brigade_launch::interrupt::Interrupt;
use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::{Distribution, Tensor};

use super::fixture::*;
use super::sampler;
use crate::dataset::samples;
use crate::run::{Session, StartFrom};
use crate::settings::{OnNonFinite, Settings};
use crate::training::Training;

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

/// Whether a test of this file runs in a process of its own, which it is started in if not: others would set the generator of this one meanwhile.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "BRIGADE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = alone.args(["--exact", &name]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// What a loop draws follows from the step, whatever blocks have drawn meanwhile, and whether the run was interrupted before.
#[test]
fn a_loop_draws_the_same_in_a_resumed_run() {
    if !is_alone("a_loop_draws_the_same_in_a_resumed_run") {
        return;
    }
    let draw = |session: &Session| {
        let drawn = Tensor::<1>::random([3], Distribution::Default, &session.device());
        drawn.try_into_vec_as::<f32>().unwrap()
    };
    let run = |out: &Path, start_from: StartFrom, ends_after: u64| {
        on_mesh(out, &settings(8), MESHES[0], start_from, |session: &Session, _| {
            let (mut drawn, mut trainer) = (SortedMap::new(), session.prepare(model(), training())?);
            drawn.insert((trainer.steps_done(), "saved"), draw(session));
            while trainer.steps_done() < ends_after
                && let Some(batches) = trainer.next_batches()?
            {
                let step = trainer.steps_done() + 1;
                drawn.insert((step, "read"), draw(session));
                trainer.step(batches)?;
                drawn.insert((step, "made"), draw(session));
                if step % 3 == 0 {
                    trainer.evaluate_on(&data())?;
                    drawn.insert((step, "evaluated"), draw(session));
                }
                if trainer.save_is_due() {
                    trainer.save()?;
                    drawn.insert((step, "saved"), draw(session));
                }
            }
            trainer.finish()?;
            Ok(drawn)
        })
        .unwrap()
    };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let uninterrupted = run(whole.path(), StartFrom::Scratch, 8);
    let mut drawn = run(parts.path(), StartFrom::Scratch, 6);
    drawn.extend(run(parts.path(), StartFrom::Checkpoint, 8));
    assert_eq!(drawn, uninterrupted);
    assert!(drawn.contains_key(&(6, "saved")));
    let different: SortedSet<Vec<u32>> =
        drawn.values().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect();
    assert_eq!(different.len(), drawn.len(), "each call draws other numbers");
}

/// Else a loop that makes its own batches would make the one again that was not finite.
#[test]
fn a_loop_draws_other_numbers_after_a_rollback() {
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(4);
    settings.train.on_nonfinite = OnNonFinite::Rollback;
    let seeds = on_mesh(out.path(), &settings, MESHES[1], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), Training::without_data())?;
        let mut seeds = Vec::new();
        while !trainer.is_over() {
            let is_bad = seeds.len() == 2;
            seeds.push((trainer.steps_done(), trainer.batch_seed(0, 2)));
            let mut batches = own_batches(session, MESHES[1], trainer.steps_done());
            if is_bad {
                batches[0].input = batches[0].input.clone() * f32::NAN;
            }
            trainer.step(batches)?;
            if trainer.save_is_due() {
                trainer.save()?;
            }
        }
        trainer.finish()?;
        Ok(seeds)
    });
    let seeds = seeds.unwrap();
    assert_eq!(seeds.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [0, 1, 2, 2, 3]);
    assert_eq!(seeds.iter().map(|(_, seed)| seed).collect::<SortedSet<_>>().len(), 5);
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
fn steps_between_updates_are_accumulated() {
    let mut accumulating = settings(8);
    accumulating.train.sync_every = 2;
    let (whole, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    on_mesh(whole.path(), &accumulating, (1, 1, 0), StartFrom::Scratch, trains).unwrap();
    on_mesh(own.path(), &accumulating, (1, 1, 0), StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), Training::on(data()))?;
        while let Some(batches) = trainer.next_batches()? {
            let report = trainer.step(batches)?;
            assert_eq!(report.is_some(), trainer.steps_done() % 2 == 0);
        }
        trainer.finish()
    })
    .unwrap();
    assert!(weights(own.path()) == weights(whole.path()));
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
fn a_validation_between_updates_is_one_of_the_last_update() {
    for mesh in [(1, 1, 0), (1, 2, 3), (2, 2, 1)] {
        let (two_steps, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut settings = keeping_best(8);
        settings.train.sync_every = 2;
        let mut short = settings.clone();
        (short.train.steps, short.train.validate_every) = (2, 0);
        on_mesh(two_steps.path(), &short, mesh, StartFrom::Scratch, trains).unwrap();
        let best = on_mesh(own.path(), &settings, mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            while let Some(batches) = trainer.next_batches()? {
                trainer.step(batches)?;
                if trainer.steps_done() % 2 == 1 && trainer.steps_done() > 1 {
                    trainer.evaluate()?;
                }
                if trainer.save_is_due() {
                    trainer.save()?;
                }
            }
            Ok(trainer.finish()?.best_step)
        });
        assert_eq!(best.unwrap(), Some(2), "{mesh:?}");
        assert_eq!(checkpoints(own.path()), [8, 2], "{mesh:?}");
        assert!(weights(own.path()) == weights(two_steps.path()), "{mesh:?}");
        let validated =
            metrics(own.path()).iter().map(|record| record.validation_loss.is_some()).collect::<Vec<_>>();
        assert_eq!(validated, [true, true, true, false], "the lines of steps 2, 4, 6 and 8");
    }
}

#[test]
fn a_save_between_updates_is_one_of_the_last_update() {
    let mut accumulating = settings(8);
    accumulating.train.sync_every = 2;
    accumulating.checkpoint.every = 6;
    let whole = tempfile::tempdir().unwrap();
    on_mesh(whole.path(), &accumulating, (1, 1, 0), StartFrom::Scratch, trains).unwrap();
    for (mesh, saves) in [((1, 1, 0), true), ((1, 2, 3), true), ((2, 2, 1), false)] {
        let parts = tempfile::tempdir().unwrap();
        let saved = on_mesh(parts.path(), &accumulating, mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            while let Some(batches) = trainer.next_batches()? {
                trainer.step(batches)?;
                if trainer.steps_done() == 5 {
                    break;
                }
            }
            if saves {
                trainer.save()?;
            }
            trainer.finish().map(|trained| trained.steps)
        });
        assert_eq!((saved.unwrap(), checkpoints(parts.path())), (5, vec![4]));
        on_mesh(parts.path(), &accumulating, (1, 1, 0), StartFrom::Checkpoint, trains).unwrap();
        assert!(weights(parts.path()) == weights(whole.path()), "{mesh:?}");
        let steps: Vec<u64> = metrics(parts.path()).iter().map(|record| record.step).collect();
        assert_eq!(steps, [2, 4, 6, 8]);
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
fn what_a_loop_cannot_do_is_said() {
    let folder = tempfile::tempdir().unwrap();
    on_mesh(folder.path(), &settings(1), (1, 1, 0), StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), Training::without_data())?;
        let again = session.prepare(model(), training()).err().unwrap().to_string();
        assert!(again.contains("already has a run"), "{again}");
        let no_data = trainer.next_batches().err().unwrap().to_string();
        assert!(no_data.contains("Training::without_data"), "{no_data}");
        let no_validation = trainer.evaluate().unwrap_err().to_string();
        assert!(no_validation.contains("Training::validate"), "{no_validation}");
        trainer.step(own_batches(session, (1, 1, 0), 0))?;
        let over = trainer.step(own_batches(session, (1, 1, 0), 1)).unwrap_err().to_string();
        assert!(over.contains("ended with step 1"), "{over}");
        trainer.finish()
    })
    .unwrap();
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

#[test]
fn ranks_that_are_given_different_numbers_of_batches_say_so() {
    for (mesh, numbers) in [
        ((1, 2, 0), "1 on rank 1; 2 on rank 0"),
        ((1, 2, 3), "1 on rank 1; 2 on rank 0"),
        ((2, 1, 0), "1 on rank 1; 4 on rank 0"),
        ((2, 2, 1), "1 on rank 1; 2 on ranks 0, 2, 3"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let end = on_mesh(folder.path(), &settings(4), mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), Training::without_data())?;
            for position in 0..4 {
                let mut batches = own_batches(session, mesh, position);
                if session.rank() == 1 && position == 2 {
                    batches.truncate(1);
                }
                trainer.step(batches)?;
            }
            trainer.finish().map(drop)
        });
        let said = format!(
            "step 3: ranks were given different numbers of micro-batches: {numbers}; every rank must give the \
            same number"
        );
        assert_eq!(end.unwrap_err().to_string(), said, "{mesh:?}");
    }
}

/// It would count other steps than the engine does.
#[test]
fn nothing_follows_a_step_that_failed() {
    let out = tempfile::tempdir().unwrap();
    on_mesh(out.path(), &settings(4), MESHES[1], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        let batches = trainer.next_batches()?.unwrap();
        trainer.step(batches)?;
        let mut bad = trainer.next_batches()?.unwrap();
        bad.iter_mut().for_each(|batch| batch.target = batch.target.clone() * f32::NAN);
        let error = format!("{:#}", trainer.step(bad).unwrap_err());
        assert!(error.starts_with("step 2: the loss is not finite (NaN)"), "{error}");
        let said = "step 2 failed, and nothing can follow it in this process; start the run again with --resume auto";
        assert_eq!(trainer.next_batches().err().unwrap().to_string(), said);
        assert_eq!(trainer.step(Vec::new()).err().unwrap().to_string(), said);
        assert_eq!(trainer.finish().err().unwrap().to_string(), said);
        Ok(())
    })
    .unwrap();
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

#[test]
fn micro_batches_that_a_loop_leaves_out_are_missed() {
    for mesh in [MESHES[1], MESHES[3]] {
        let out = tempfile::tempdir().unwrap();
        let end = on_mesh(out.path(), &settings(4), mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            let mut batches = trainer.next_batches()?.unwrap();
            if session.rank() == 1 {
                batches.pop();
            }
            trainer.step(batches).map(drop)
        });
        let text = end.unwrap_err().to_string();
        assert!(text.starts_with("step 1: ranks were given different numbers of micro-batches: "), "{text}");
    }
}
