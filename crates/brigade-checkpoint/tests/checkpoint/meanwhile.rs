//! A run that removes or replaces checkpoints while somebody else reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_checkpoint::{Error, LocalStorage, Storage, list, rank_file, verify};

use crate::sample::Sample;
use crate::storages::{Behaviour, Custom};

/// What a run does to the checkpoint of step 1 the first time that a certain file of it is opened.
#[derive(Debug)]
enum Deed {
    Remove,
    /// Saves it again, with other values, by other ranks.
    Replace,
}

#[derive(Debug)]
struct Run {
    storage: Arc<dyn Storage>,
    deed: Deed,
    file: String,
    is_done: AtomicBool,
}

impl Behaviour for Run {
    fn before_open(&self, folder: &str, name: &str) {
        let is_it = folder.contains("00000001") && name == self.file;
        if !is_it || self.is_done.swap(true, Ordering::Relaxed) {
            return;
        }
        match self.deed {
            Deed::Remove => self.storage.remove(folder).unwrap(),
            Deed::Replace => drop(Sample::new(&[30], 3).save(&*self.storage, 1, 1).unwrap()),
        }
    }
}

fn each(deed: impl Fn() -> Deed, check: impl Fn(&dyn Storage)) {
    for file in ["manifest.json".into(), rank_file(0), rank_file(1)] {
        let folder = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(folder.path()));
        for step in [1, 2] {
            Sample::new(&[20], step as u32).save(&*storage, step, 2).unwrap();
        }
        check(&Custom::new(
            storage.clone(),
            Run { storage, deed: deed(), file, is_done: AtomicBool::new(false) },
        ));
    }
}

#[test]
fn what_a_run_removes_is_not_called_damaged() {
    each(|| Deed::Remove, |storage| assert!(matches!(verify(storage, 1), Err(Error::StepNotFound { .. }))));
    each(
        || Deed::Remove,
        |storage| {
            let found = list(storage).unwrap();
            assert!(found.iter().map(|found| found.step).eq([2]) && found[0].summary.is_ok(), "{found:?}");
        },
    );
}

#[test]
fn what_a_run_replaces_is_read_anew() {
    each(|| Deed::Replace, |storage| assert_eq!(verify(storage, 1).unwrap(), []));
    each(
        || Deed::Replace,
        |storage| {
            let found = list(storage).unwrap();
            assert!(found.len() == 2 && found.iter().all(|found| found.summary.is_ok()), "{found:?}");
        },
    );
}
