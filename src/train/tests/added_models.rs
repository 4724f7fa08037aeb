//! Runs of several models.

use std::path::Path;

use brigade_checkpoint::{Checkpoint, open_storage, rank_file};
use brigade_core::Batch;
use brigade_models::{Stored, WeightsFormat, WeightsMapping};
use burn::optim::SgdConfig;
use burn::tensor::Device;

use super::fixture::*;
use super::on_ranks;
use crate::checkpoint::consolidate;
use crate::error::{DryRun, Preempted};
use crate::memory::Sampled;
use crate::run::{Session, StartFrom};
use crate::settings::{Backend, OnNonFinite, OptimizerGroup, Settings, TrainSettings};
use crate::test_model::layers;
use crate::training_setup::Training;

/// Trains a second model twice for each step of the first, which ends at step `stop`, or in a preemption.
fn train(
    out: &Path,
    settings: &Settings,
    mesh: Mesh,
    start_from: StartFrom,
    preempted_in: u64,
) -> anyhow::Result<()> {
    on_mesh(out, settings, mesh, start_from, |session: &Session, interrupt| {
        let mut trainer = session.prepare(model(), training())?;
        let in_files = WeightsMapping::default().rule("*.weight", Stored::tensor("*.kernel").transposed());
        let own = Training::without_data().mapping(in_files);
        let mut second = trainer.add_model("critic", layers(WIDTH, &["a", "b"]), own)?;
        assert!(
            trainer.add_model("critic", layers(WIDTH, &["a"]), Training::without_data()).is_err(),
            "taken"
        );
        assert!(trainer.add_model("a/b", layers(WIDTH, &["a"]), Training::without_data()).is_err());
        while let Some(batches) = trainer.next_batches()? {
            let first = second.step(batches.clone())?.unwrap();
            second.step(batches.clone())?;
            let step = trainer.step(batches)?.unwrap().step;
            assert_eq!(first.step, 2 * step - 1);
            trainer.log("critic_loss", first.loss);
            if step == preempted_in {
                interrupt.preempt();
            }
            if trainer.save_is_due() {
                trainer.save()?;
            }
        }
        let late = trainer.add_model("late", layers(WIDTH, &["a"]), Training::without_data()).err().unwrap();
        assert!(late.to_string().contains("before the first step"), "{late}");
        trainer.finish().map(drop)
    })
}

#[test]
fn two_models_are_saved_and_resumed_together() {
    let critic = |out: &Path| std::fs::read(out.join("model-critic.safetensors")).unwrap();
    let whole = tempfile::tempdir().unwrap();
    train(whole.path(), &settings(8), MESHES[0], StartFrom::Scratch, 0).unwrap();
    assert!(metrics(whole.path()).iter().all(|record| record.metrics["critic_loss"] > 0.0));
    for (mesh, next) in [(MESHES[1], MESHES[3]), (MESHES[2], MESHES[4]), (MESHES[4], MESHES[0])] {
        let parts = tempfile::tempdir().unwrap();
        let preempted = train(parts.path(), &settings(8), mesh, StartFrom::Scratch, 4).unwrap_err();
        assert!(preempted.is::<Preempted>(), "{preempted:#}");
        train(parts.path(), &settings(8), next, StartFrom::Checkpoint, 0).unwrap();
        assert!(weights(parts.path()) == weights(whole.path()), "{mesh:?}");
        assert!(critic(parts.path()) == critic(whole.path()), "{mesh:?}");
        checkpoint_has_the_weights(parts.path());
    }
}

/// The weights of the last checkpoint are written into the same files as those of the run.
fn checkpoint_has_the_weights(out: &Path) {
    let storage = open_storage(out.join("checkpoints").to_str().unwrap()).unwrap();
    let checkpoint = Checkpoint::open(storage, 8).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("step-8.safetensors");
    let written = consolidate(&checkpoint, &to, WeightsFormat::ONE_FILE, false).unwrap();
    let critic = folder.path().join("step-8-critic.safetensors");
    assert_eq!(written, [(to.clone(), 8), (critic.clone(), 4)]);
    assert!(std::fs::read(&to).unwrap() == weights(out));
    let of_the_run = std::fs::read(out.join("model-critic.safetensors")).unwrap();
    assert!(std::fs::read(&critic).unwrap() == of_the_run);
    assert!(String::from_utf8_lossy(&of_the_run).contains("\"a.kernel\""), "as its mapping says");

    std::fs::remove_file(&to).unwrap();
    let there = consolidate(&checkpoint, &to, WeightsFormat::ONE_FILE, false).unwrap_err().to_string();
    assert!(there.contains("step-8-critic.safetensors"), "{there}");
    assert!(!to.exists(), "all files or none");
    consolidate(&checkpoint, &to, WeightsFormat::ONE_FILE, true).unwrap();
    assert!(std::fs::read(&to).unwrap() == weights(out));
}

#[test]
fn between_updates_models_that_may_have_gone_on_are_not_saved() {
    let mut settings = settings(4);
    settings.train.sync_every = 2;
    settings.checkpoint.keep_best = true;
    for mesh in [MESHES[0], MESHES[4]] {
        let folder = tempfile::tempdir().unwrap();
        on_mesh(folder.path(), &settings, mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            trainer.add_model("critic", layers(WIDTH, &["a", "b"]), Training::without_data())?;
            for step in 1..=2 {
                let batches = trainer.next_batches()?.unwrap();
                trainer.step(batches)?;
                if step == 1 {
                    let text = trainer.evaluate().unwrap_err().to_string();
                    let said = "after a multiple of train.sync_every (--sync-every) = 2 of its steps";
                    assert!(text.contains("but step 1 makes no update") && text.ends_with(said), "{text}");
                    let text = trainer.save().unwrap_err().to_string();
                    assert!(text.starts_with("step 1 makes no update") && text.ends_with(said), "{text}");
                }
            }
            trainer.evaluate()?;
            trainer.finish()
        })
        .unwrap();
        assert_eq!(checkpoints(folder.path()), [2]);
    }
}

/// It has made half as many steps.
#[test]
fn a_further_model_between_updates_is_not_saved_and_its_weights_are_written() {
    let mut settings = settings(6);
    settings.train.sync_every = 2;
    for mesh in [MESHES[0], MESHES[4]] {
        let folder = tempfile::tempdir().unwrap();
        on_mesh(folder.path(), &settings, mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            let mut critic =
                trainer.add_model("critic", layers(WIDTH, &["a", "b"]), Training::without_data())?;
            while let Some(batches) = trainer.next_batches()? {
                trainer.step(batches.clone())?;
                if trainer.steps_done() % 2 == 0 {
                    critic.step(batches)?;
                }
                if trainer.steps_done() == 2 {
                    let text = trainer.save().unwrap_err().to_string();
                    assert!(text.starts_with("step 1 of the model `critic` makes no update"), "{text}");
                }
                if trainer.save_is_due() {
                    trainer.save()?;
                }
            }
            trainer.finish()
        })
        .unwrap();
        assert_eq!(checkpoints(folder.path()), [4], "{mesh:?}");
        assert!(folder.path().join("model-critic.safetensors").exists());
        assert!(!weights(folder.path()).is_empty());
    }
}

#[test]
fn a_model_may_be_added_after_a_save() {
    let mut settings = settings(2);
    settings.checkpoint.asynchronous = false;
    let out = tempfile::tempdir().unwrap();
    on_mesh(out.path(), &settings, MESHES[1], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        trainer.save()?;
        trainer.add_model("critic", layers(WIDTH, &["a"]), Training::without_data()).map(drop)
    })
    .unwrap();
}

#[test]
fn a_further_model_makes_no_step_after_one_that_failed() {
    let out = tempfile::tempdir().unwrap();
    on_mesh(out.path(), &settings(2), MESHES[1], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        let mut critic = trainer.add_model("critic", layers(WIDTH, &["a"]), Training::without_data())?;
        let batches = trainer.next_batches()?.unwrap();
        let mut bad = batches.clone();
        bad.iter_mut().for_each(|batch| batch.input = batch.input.clone() / 0.0);
        critic.step(bad).unwrap_err();
        let said = critic.step(batches).unwrap_err().to_string();
        assert!(said.starts_with("step 1 of `critic` failed, and nothing can follow it"), "{said}");
        Ok(())
    })
    .unwrap();
}

/// Of three batches of a further model the first and the last are not finite.
fn with_bad_batches(
    out: &Path,
    settings: &Settings,
    mesh: Mesh,
    start_from: StartFrom,
) -> anyhow::Result<u64> {
    on_mesh(out, settings, mesh, start_from, |session: &Session, _| {
        let mut trainer = session.prepare(model(), training())?;
        let mut critic = trainer.add_model("critic", layers(WIDTH, &["a", "b"]), Training::without_data())?;
        let mut skipped = 0;
        while let Some(batches) = trainer.next_batches()? {
            let mut bad = batches.clone();
            bad.iter_mut().for_each(|batch| batch.input = batch.input.clone() / 0.0);
            let mut step = |batches| -> anyhow::Result<()> {
                skipped += u64::from(critic.step(batches)?.unwrap().skipped);
                Ok(())
            };
            step(bad.clone())?;
            step(batches.clone())?;
            trainer.step(batches)?;
            step(bad)?;
            if trainer.save_is_due() {
                trainer.save()?;
            }
        }
        trainer.finish()?;
        Ok(skipped)
    })
}

#[test]
fn skipped_steps_of_a_further_model_are_recorded_and_counted() {
    let mut settings = settings(4);
    settings.train.on_nonfinite = OnNonFinite::Skip;
    settings.train.nonfinite_limit = 9;
    for mesh in MESHES {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(with_bad_batches(folder.path(), &settings, mesh, StartFrom::Scratch).unwrap(), 8);
        for record in metrics(folder.path()) {
            assert_eq!((record.skipped, record.metrics["critic_skipped_steps"]), (false, 2.0), "{mesh:?}");
        }
        // Those of before the resume count.
        let more =
            Settings { train: TrainSettings { steps: 8, ..settings.train.clone() }, ..settings.clone() };
        let error = with_bad_batches(folder.path(), &more, MESHES[0], StartFrom::Checkpoint).unwrap_err();
        let said = "step 15 of `critic`: loss or gradient norm not finite, 10 times in this run; train.nonfinite_limit = 9 allows no more";
        assert_eq!(error.to_string(), said);
    }
}

#[test]
fn ranks_give_a_further_model_as_many_batches() {
    for mesh in [MESHES[1], MESHES[3]] {
        let folder = tempfile::tempdir().unwrap();
        let end = on_mesh(folder.path(), &settings(4), mesh, StartFrom::Scratch, |session, _| {
            let mut trainer = session.prepare(model(), training())?;
            let mut critic =
                trainer.add_model("critic", layers(WIDTH, &["a", "b"]), Training::without_data())?;
            let batches = trainer.next_batches()?.unwrap();
            critic.step(batches[..1 + session.rank()].to_vec()).map(drop)
        });
        let said = "step 1 of `critic`: ranks were given different numbers of micro-batches: 1 on rank 0; 2 on rank 1; ";
        let text = end.unwrap_err().to_string();
        assert!(text.starts_with(said), "{mesh:?}: {text}");
    }
}

#[test]
fn a_further_model_that_cannot_be_written_is_refused_before_it_trains() {
    let folder = tempfile::tempdir().unwrap();
    let error = on_mesh(folder.path(), &settings(4), MESHES[0], StartFrom::Scratch, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        let both = WeightsMapping::default().rule("*.weight", "kernel");
        let own = Training::without_data().mapping(both);
        trainer.add_model("critic", layers(WIDTH, &["a", "b"]), own).map(drop)
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("model-critic.safetensors: tensor `kernel` would be filled by both"), "{text}");
}

#[test]
fn a_model_that_a_checkpoint_does_not_have_is_named() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), &settings(4), MESHES[0], StartFrom::Scratch, 0).unwrap();
    let error = on_mesh(folder.path(), &settings(6), MESHES[1], StartFrom::Checkpoint, |session, _| {
        let mut trainer = session.prepare(model(), training())?;
        trainer.add_model("judge", layers(WIDTH, &["a"]), Training::without_data()).map(drop)
    });
    let text = error.unwrap_err().to_string();
    assert!(text.contains("model `judge` from step 4") && text.contains("has no model `judge`"), "{text}");
}

/// What is damaged is read only when the model is made, after the first one.
#[test]
fn a_checkpoint_with_a_damaged_additional_model_is_skipped() {
    let mut settings = settings(4);
    (settings.checkpoint.every, settings.checkpoint.keep) = (2, 2);
    for mesh in [MESHES[0], MESHES[1]] {
        let folder = tempfile::tempdir().unwrap();
        // So large that its values are in other parts of the files than the first model's.
        let run = |start_from| {
            on_mesh(folder.path(), &settings, mesh, start_from, |session, _| {
                let mut trainer = session.prepare(model(), training())?;
                trainer.add_model("critic", layers(700, &["a"]), Training::without_data())?;
                let begun = trainer.steps_done();
                while let Some(batches) = trainer.next_batches()? {
                    trainer.step(batches)?;
                    if trainer.save_is_due() {
                        trainer.save()?;
                    }
                }
                trainer.finish()?;
                Ok(begun)
            })
        };
        assert_eq!(run(StartFrom::Scratch).unwrap(), 0);
        let whole = weights(folder.path());
        let damaged = folder.path().join("checkpoints/step-00000004");
        for rank in 0..mesh.0 * mesh.1 {
            let path = damaged.join(rank_file(rank));
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        assert_eq!(run(StartFrom::Checkpoint).unwrap(), 2, "{mesh:?}");
        assert!(weights(folder.path()) == whole, "{mesh:?}");
    }
}

#[test]
fn a_model_that_the_program_no_longer_adds_is_named() {
    let out = tempfile::tempdir().unwrap();
    train(out.path(), &settings(8), MESHES[0], StartFrom::Scratch, 4).unwrap_err();
    let error = on_mesh(out.path(), &settings(8), MESHES[0], StartFrom::Checkpoint, |session, _| {
        session.prepare(model(), training())?.next_batches().map(drop)
    });
    let error = error.unwrap_err();
    assert!(format!("{error:#}").contains("the checkpoint has the additional model `critic`"), "{error:#}");
}

#[test]
fn an_added_model_has_its_own_learning_rate_and_takes_nothing_that_is_the_runs() {
    let out = tempfile::tempdir().unwrap();
    on_mesh(out.path(), &settings(2), MESHES[1], StartFrom::Scratch, |session: &Session, _| {
        let mut trainer = session.prepare(model(), training())?;
        for (own, part) in [
            (Training::on(data()), "`Training::on`"),
            (Training::without_data().validate(data()), "`Training::validate`"),
            (Training::without_data().on_step(|_| {}), "`Training::on_step`"),
            (Training::without_data().file("a.txt", "a"), "`Training::file`"),
        ] {
            let error = trainer.add_model("critic", layers(WIDTH, &["a"]), own).err().unwrap().to_string();
            assert!(error.contains("`critic`") && error.contains(part), "{error}");
        }
        let still = Training::without_data()
            .learning_rate(|_| 0.0)
            .derived_metric("twice", |metrics| 2.0 * metrics.get("largest").copied().unwrap_or_default());
        let still = still.metric("largest", |output: Rows, _| output.max());
        let mut still = trainer.add_model("still", layers(WIDTH, &["a"]), still)?;
        let before = still.weights()?;
        while let Some(batches) = trainer.next_batches()? {
            let report = still.step(batches.clone())?.unwrap();
            assert_eq!(report.metrics["twice"], 2.0 * report.metrics["largest"]);
            trainer.step(batches)?;
        }
        assert_eq!(still.weights()?, before);
        assert_eq!(before.len(), if session.rank() == 0 { 2 } else { 0 });
        assert_eq!(trainer.weights()?.is_empty(), session.rank() > 0);
        trainer.finish().map(drop)
    })
    .unwrap();
}

/// Whether it steps before the first model or after it.
#[test]
fn an_added_model_has_the_learning_rate_of_the_step_under_way() {
    let mut settings = settings(6);
    settings.schedule.name = brigade_core::LrSchedulerKind::Linear;
    let run = |is_first: bool, factors: Option<Vec<f64>>| {
        let out = tempfile::tempdir().unwrap();
        on_mesh(out.path(), &settings, MESHES[1], StartFrom::Scratch, |session: &Session, _| {
            let mut trainer = session.prepare(model(), training())?;
            let own = factors.clone().map(|factors| move |step: u64| factors[step as usize]);
            let own = own.into_iter().fold(Training::without_data(), Training::learning_rate);
            let mut student = trainer.add_model("student", layers(WIDTH, &["a"]), own)?;
            let mut factors = Vec::new();
            while let Some(batches) = trainer.next_batches()? {
                factors.push(trainer.learning_rate() / settings.optimizer.learning_rate);
                if is_first {
                    student.step(batches.clone())?;
                }
                trainer.step(batches.clone())?;
                if !is_first {
                    student.step(batches)?;
                }
            }
            Ok((factors, student.weights()?))
        })
        .unwrap()
    };
    let (factors, weights) = run(false, None);
    assert!(factors.windows(2).any(|pair| pair[0] != pair[1]), "{factors:?}");
    assert!(run(true, None).1 == weights);
    assert!(run(false, Some(factors)).1 == weights);
}

#[test]
fn a_dry_run_counts_models_that_the_program_names() {
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(2);
    settings.compute.backend = Backend::Cpu;
    on_ranks(1, out.path(), &settings, StartFrom::Scratch, |mut session, _| {
        (session.is_dry_run, session.local_ranks) = (true, Some(1));
        let batch = |count: usize, device: &Device| {
            let (input, target) = rows(&(0..count).collect::<Vec<_>>(), device);
            Batch::new(input, target, count)
        };
        let needed = || {
            let (model, samples) = (&model(), &|count: usize| anyhow::Ok(batch(count, &session.device())));
            let plan = session.memory_plan(&session.plan, &Sampled { model, samples }).unwrap();
            plan.assessment.unwrap().text
        };
        let alone = needed();
        let own = Training::without_data().measured_on(batch);
        session.count_model("critic", &mut layers(WIDTH, &["a", "b"]), &own)?;
        let both = needed();
        assert!(alone.starts_with("the run will need about ") && alone != both, "{alone}, {both}");
        let ended = session.prepare(model(), training()).err().unwrap();
        assert!(ended.is::<DryRun>());
        Ok(())
    })
    .unwrap();
}

/// Patterns and groups of the settings are of the first model's parameters, and each model has its program's own groups.
#[test]
fn a_counted_model_is_planned_as_it_is_trained() {
    let out = tempfile::tempdir().unwrap();
    let mut settings = settings(2);
    settings.train.freeze = vec!["0.*".to_owned()];
    settings.optimizer.groups = vec![OptimizerGroup::matching("1.*").learning_rate(0.1)];
    on_ranks(1, out.path(), &settings, StartFrom::Scratch, |mut session, _| {
        session.is_dry_run = true;
        let optimizer_bytes = |names: &[&str], own: Training<Rows, Rows, Rows>| {
            session.count_model("critic", &mut layers(WIDTH, names), &own)?;
            let counted = session.counted.borrow_mut().pop().unwrap();
            anyhow::Ok(counted.footprint.stages[0].memory.optimizer.peak)
        };
        // Of two moments of each value of a layer.
        let each = optimizer_bytes(&["a"], Training::without_data())?;
        assert!(each > 0);
        assert_eq!(optimizer_bytes(&["0", "1"], Training::without_data())?, 2 * each);
        let frozen = Training::without_data().group(OptimizerGroup::matching("1.*").frozen());
        assert_eq!(optimizer_bytes(&["0", "1"], frozen)?, each);
        let sgd = SgdConfig::new().build();
        assert_eq!(optimizer_bytes(&["0", "1"], Training::without_data().optimizer(sgd))?, 0);
        Ok(())
    })
    .unwrap();
}
