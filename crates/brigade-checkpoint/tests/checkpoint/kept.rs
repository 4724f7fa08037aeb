//! Which checkpoints are kept, and which are removed.

use std::fs;
use std::num::NonZeroUsize;

use brigade_checkpoint::{LocalStorage, StagingDir, Storage, keep_latest, list, remove_after, remove_stale};

use crate::sample::Sample;
use crate::storages::kinds;

fn steps(storage: &dyn Storage) -> Vec<u64> {
    list(storage).unwrap().iter().map(|found| found.step).collect()
}

#[test]
fn the_newest_are_kept() {
    let sample = Sample::new(&[10], 1);
    for (kind, storage, _folder) in kinds() {
        for step in [5, 100_000_000, 20, 10, 15] {
            sample.save(&*storage, step, 2).unwrap();
        }
        assert_eq!(steps(&*storage), [100_000_000, 20, 15, 10, 5], "{kind}");
        assert_eq!(
            keep_latest(
                &*storage,
                &storage.published().unwrap(),
                NonZeroUsize::new(7).unwrap(),
                |_| false,
                None
            )
            .unwrap(),
            Vec::<u64>::new()
        );
        assert_eq!(
            keep_latest(
                &*storage,
                &storage.published().unwrap(),
                NonZeroUsize::new(3).unwrap(),
                |_| false,
                None
            )
            .unwrap(),
            [10, 5],
            "{kind}"
        );
        assert_eq!(
            keep_latest(&*storage, &storage.published().unwrap(), NonZeroUsize::MIN, |_| false, None)
                .unwrap(),
            [20, 15],
            "{kind}"
        );
        assert_eq!(steps(&*storage), [100_000_000], "{kind}");
        assert!(storage.unpublished().unwrap().is_empty(), "{kind}");
    }
}

#[test]
fn the_newest_of_a_kind_is_kept_besides() {
    let sample = Sample::new(&[10], 1);
    for (kind, storage, _folder) in kinds() {
        for step in [10, 20, 21, 22, 23] {
            sample.save(&*storage, step, 2).unwrap();
        }
        let tens = |step: u64| step.is_multiple_of(10);
        assert_eq!(
            keep_latest(&*storage, &storage.published().unwrap(), NonZeroUsize::new(2).unwrap(), tens, None)
                .unwrap(),
            [21, 10],
            "{kind}"
        );
        assert_eq!(steps(&*storage), [23, 22, 20], "{kind}");
        sample.save(&*storage, 30, 2).unwrap();
        assert_eq!(
            keep_latest(&*storage, &storage.published().unwrap(), NonZeroUsize::MIN, tens, None).unwrap(),
            [23, 22, 20],
            "{kind}"
        );
    }
}

#[test]
fn the_best_is_kept_besides() {
    let sample = Sample::new(&[10], 1);
    for (kind, storage, _folder) in kinds() {
        for step in [10, 20, 30, 40] {
            sample.save(&*storage, step, 2).unwrap();
        }
        let keep = |newest: usize, best: u64| {
            let newest = NonZeroUsize::new(newest).unwrap();
            keep_latest(&*storage, &storage.published().unwrap(), newest, |_| false, Some(best)).unwrap()
        };
        assert_eq!(keep(2, 10), [20], "{kind}");
        assert_eq!(steps(&*storage), [40, 30, 10], "{kind}");
        assert_eq!(keep(1, 40), [30, 10], "{kind}: another one is the best");
        assert_eq!(steps(&*storage), [40], "{kind}");
    }
}

#[test]
fn what_a_run_went_back_from_is_removed() {
    let sample = Sample::new(&[10], 1);
    for (kind, storage, _folder) in kinds() {
        for step in [5, 10, 15, 20] {
            sample.save(&*storage, step, 2).unwrap();
        }
        assert_eq!(
            remove_after(&*storage, &storage.published().unwrap(), 20).unwrap(),
            Vec::<u64>::new(),
            "{kind}"
        );
        assert_eq!(remove_after(&*storage, &storage.published().unwrap(), 10).unwrap(), [20, 15], "{kind}");
        assert_eq!(steps(&*storage), [10, 5], "{kind}");
    }
}

#[test]
fn a_whole_one_is_not_removed_for_a_broken_one() {
    let sample = Sample::new(&[10], 1);
    let folder = tempfile::tempdir().unwrap();
    let storage = LocalStorage::new(folder.path());
    for step in 1..=4 {
        sample.save(&storage, step, 2).unwrap();
    }
    fs::remove_file(folder.path().join("step-00000004/rank-00001.safetensors")).unwrap();
    assert_eq!(
        keep_latest(&storage, &storage.published().unwrap(), NonZeroUsize::new(2).unwrap(), |_| false, None)
            .unwrap(),
        [1]
    );
    assert_eq!(steps(&storage), [4, 3, 2]);
    fs::remove_file(folder.path().join("step-00000003/manifest.json")).unwrap();
    fs::remove_file(folder.path().join("step-00000002/manifest.blake3")).unwrap();
    assert_eq!(
        keep_latest(&storage, &storage.published().unwrap(), NonZeroUsize::MIN, |_| false, None).unwrap(),
        Vec::<u64>::new()
    );
}

#[test]
fn what_dead_writers_left_is_removed() {
    let sample = Sample::new(&[10], 1);
    for (kind, storage, _folder) in kinds() {
        sample.save(&*storage, 1, 2).unwrap();
        for step in [1, 2] {
            let staging = StagingDir::with_id(step, "dead").unwrap();
            sample.write(&*storage, &staging, 2).unwrap();
        }
        assert_eq!(steps(&*storage), [1], "{kind}");
        assert_eq!(remove_stale(&*storage).unwrap().len(), 2, "{kind}");
        assert_eq!(remove_stale(&*storage).unwrap().len(), 0, "{kind}");
        assert_eq!(steps(&*storage), [1], "{kind}");
    }
}

#[test]
fn other_files_are_let_be() {
    let folder = tempfile::tempdir().unwrap();
    let storage = LocalStorage::new(folder.path());
    for name in ["notes", ".step-1", "step-x", ".step-00000001", "best.old"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("step-00000009"), "a file").unwrap();
    let found = list(&storage).unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].summary.as_ref().unwrap_err().to_string().contains("step-00000009/manifest.json"));
    assert!(remove_stale(&storage).unwrap().is_empty());
}
