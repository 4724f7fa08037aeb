//! What loops draw from Burn's generator, and the seeds of their batches.

use std::path::Path;
use std::process::Command;

use brigade_sorted::{SortedMap, SortedSet};
use burn::tensor::{Distribution, Tensor};

use super::own_batches;
use crate::run::{Session, StartFrom};
use crate::settings::OnNonFinite;
use crate::train::tests::fixture::*;
use crate::training_setup::Training;

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
