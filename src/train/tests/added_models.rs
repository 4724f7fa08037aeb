//! Runs of several models.

use super::fixture::*;
use crate::error::Preempted;
use crate::run::{Session, StartFrom};
use crate::settings::Settings;
use crate::test_model::layers;
use crate::training::Training;

/// Trains a second model twice for each step of the first, which ends at step `stop`, or in a preemption.
fn train(
    out: &std::path::Path,
    settings: &Settings,
    mesh: Mesh,
    start_from: StartFrom,
    preempted_in: u64,
) -> anyhow::Result<()> {
    on_mesh(out, settings, mesh, start_from, |session: &Session, interrupt| {
        let mut trainer = session.prepare(model(), training())?;
        let mut second = trainer.add_model("critic", layers(WIDTH, &["a", "b"]), Training::without_data())?;
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
    let critic = |out: &std::path::Path| std::fs::read(out.join("model-critic.safetensors")).unwrap();
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
    }
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
