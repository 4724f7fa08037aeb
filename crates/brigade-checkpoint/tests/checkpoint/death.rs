//! Whatever goes wrong, and whenever: the old checkpoint is whole, or the new one.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, LocalStorage, Result, StagingDir, Storage, keep_latest, list, publish, remove_stale,
};

use crate::sample::Sample;
use crate::storages::{Fault, Faulty, kinds};

/// Every rank writes, one publishes, older ones are removed.
fn save(storage: &dyn Storage, sample: &Sample, step: u64) -> Result<()> {
    sample.save(storage, step, 2)?;
    keep_latest(storage, &storage.published()?, NonZeroUsize::MIN, |_| false, None)?;
    Ok(())
}

/// The newest checkpoint, which must be one of the two, unharmed; whether it is the new one.
fn newest(storage: &Arc<dyn Storage>, old: &Sample, new: &Sample, context: &str) -> bool {
    let found = list(&**storage).unwrap();
    let whole = found.iter().find(|found| found.summary.is_ok());
    let whole = whole.unwrap_or_else(|| panic!("{context}: no whole checkpoint in {found:?}"));
    assert!(found.iter().all(|found| found.summary.is_ok()), "{context}: visible in part: {found:?}");
    let checkpoint = Checkpoint::open(storage.clone(), whole.step).unwrap();
    assert_eq!(checkpoint.verify(), vec![], "{context}");
    let is_new = new.is_in(&checkpoint).unwrap();
    assert!(is_new || old.is_in(&checkpoint).unwrap(), "{context}: neither old nor new");
    is_new
}

#[test]
fn a_death_or_failure_at_every_operation() {
    let (old, new) = (Sample::new(&[20, 9], 1), Sample::new(&[20, 9], 2));
    for kind in 0..kinds().len() {
        // A new step, and a step that is replaced.
        for step in [2, 1] {
            let operations = {
                let (_, storage, _folder) = kinds().swap_remove(kind);
                save(&*storage, &old, 1).unwrap();
                let counting = Faulty::new(storage, u64::MAX, Fault::Fail);
                save(&counting, &new, step).unwrap();
                counting.counted()
            };
            assert!(operations > 20, "{operations} operations");
            for fault in [Fault::Fail, Fault::Die] {
                let mut seen = [false; 2];
                for after in 0..operations {
                    let (name, storage, _folder) = kinds().swap_remove(kind);
                    save(&*storage, &old, 1).unwrap();
                    let context = format!("{name}, step {step}, {fault:?} after {after} of {operations}");
                    let outcome = save(&Faulty::new(storage.clone(), after, fault), &new, step);
                    let is_new = newest(&storage, &old, &new, &context);
                    assert!(is_new || outcome.is_err(), "{context}: lost without an error");
                    seen[usize::from(is_new)] = true;

                    remove_stale(&*storage).unwrap();
                    assert!(storage.unpublished().unwrap().is_empty(), "{context}");
                    assert_eq!(newest(&storage, &old, &new, &context), is_new, "{context}: stale removed");
                    save(&*storage, &new, step).unwrap();
                    assert!(newest(&storage, &old, &new, &context));
                    assert_eq!(list(&*storage).unwrap().len(), 1, "{context}");
                }
                assert_eq!(seen, [true; 2]);
            }
        }
    }
}

#[test]
fn a_failed_save_leaves_nothing() {
    let sample = Sample::new(&[20, 9], 1);
    for (kind, storage, _folder) in kinds() {
        for after in 0..3 {
            let faulty = Faulty::new(storage.clone(), 2 + after, Fault::Fail);
            sample.save(&faulty, 1, 1).unwrap_err();
            assert_eq!(storage.unpublished().unwrap(), Vec::<String>::new(), "{kind}");
        }
    }
}

fn rename(root: &Path, from: &str, to: &str) {
    fs::rename(root.join(from), root.join(to)).unwrap();
}

/// The states that a local folder is in while one checkpoint replaces another.
#[test]
fn a_death_inside_the_replacement() {
    let (old, new) = (Sample::new(&[20, 9], 1), Sample::new(&[20, 9], 2));
    let partial = ".step-00000001.partial-a";
    type Steps = fn(&Path);
    let steps: [(&str, Steps, bool); 5] = [
        ("written", |_| {}, false),
        ("set aside", |root| rename(root, "step-00000001", "step-00000001.old"), false),
        (
            "renamed",
            |root| {
                rename(root, "step-00000001", "step-00000001.old");
                rename(root, ".step-00000001.partial-a", "step-00000001");
            },
            true,
        ),
        (
            "hidden",
            |root| {
                rename(root, "step-00000001", ".step-00000001.old.removed");
                rename(root, ".step-00000001.partial-a", "step-00000001");
            },
            true,
        ),
        (
            "half removed",
            |root| {
                rename(root, "step-00000001", ".step-00000001.old.removed");
                rename(root, ".step-00000001.partial-a", "step-00000001");
                fs::remove_file(root.join(".step-00000001.old.removed/manifest.json")).unwrap();
            },
            true,
        ),
    ];
    for (name, step, is_new) in steps {
        for tidied in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(folder.path()));
            // The new one as it is just before it is published.
            new.save(&*storage, 1, 2).unwrap();
            rename(folder.path(), "step-00000001", partial);
            old.save(&*storage, 1, 2).unwrap();
            step(folder.path());
            assert_eq!(newest(&storage, &old, &new, name), is_new, "{name}");
            if tidied {
                remove_stale(&*storage).unwrap();
                assert_eq!(newest(&storage, &old, &new, name), is_new, "{name}");
            }
            save(&*storage, &new, 1).unwrap();
            assert!(newest(&storage, &old, &new, name), "{name}");
            remove_stale(&*storage).unwrap();
            let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(left, ["step-00000001"], "{name}");
            storage.remove("step-00000001").unwrap();
            assert!(list(&*storage).unwrap().is_empty(), "{name}");
        }
    }
}

#[test]
fn removing_never_shows_the_replaced_one() {
    let (old, new) = (Sample::new(&[20], 1), Sample::new(&[20], 2));
    let folder = tempfile::tempdir().unwrap();
    let storage = LocalStorage::new(folder.path());
    old.save(&storage, 1, 1).unwrap();
    rename(folder.path(), "step-00000001", "step-00000001.old");
    let staging = StagingDir::new(1).unwrap();
    let entries = new.write(&storage, &staging, 1).unwrap();
    publish(&storage, &staging, new.state.clone(), entries).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // As if the death had come before the old one was removed.
    old.save(&storage, 2, 1).unwrap();
    rename(folder.path(), "step-00000002", "step-00000001.old");
    storage.remove("step-00000001").unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
