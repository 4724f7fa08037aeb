//! Steps, validations and saves between updates.

use super::trains;
use crate::run::StartFrom;
use crate::train::tests::fixture::*;
use crate::training_setup::Training;

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
