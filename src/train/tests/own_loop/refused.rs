//! What loops cannot do, and what they are told.

use super::own_batches;
use crate::run::StartFrom;
use crate::train::tests::fixture::*;
use crate::training_setup::Training;

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
