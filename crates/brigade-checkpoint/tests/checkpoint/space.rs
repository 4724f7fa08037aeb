//! A disk that is full, before and during a save.

use std::io;
use std::sync::Arc;

use brigade_checkpoint::{
    Checkpoint, Error, LocalStorage, Result, Staging, Storage, check_space, list, write_rank,
};

use crate::sample::Sample;
use crate::storages::{Behaviour, Custom};

/// A disk that takes so many bytes.
#[derive(Debug)]
struct Disk(u64);

impl Behaviour for Disk {
    fn before_write(&self, written: u64, bytes: &[u8]) -> Result<()> {
        if written + bytes.len() as u64 <= self.0 {
            return Ok(());
        }
        let source = io::Error::from(io::ErrorKind::StorageFull);
        Err(Error::DiskFull { path: "the file".into(), written, source })
    }
}

#[derive(Debug)]
struct Free(u64);

impl Behaviour for Free {
    fn free_space(&self) -> Option<u64> {
        Some(self.0)
    }
}

#[test]
fn a_disk_that_fills_at_any_byte_leaves_the_old_checkpoint() {
    let (old, new) = (Sample::new(&[20], 1), Sample::new(&[20], 2));
    let folder = tempfile::tempdir().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(folder.path()));
    old.save(&*storage, 1, 2).unwrap();
    let mut limit = 0;
    loop {
        let disk = Custom::new(storage.clone(), Disk(limit));
        match new.save(&disk, 2, 2) {
            Ok(_) => break,
            Err(Error::DiskFull { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(storage.unpublished().unwrap().is_empty(), "{limit}");
        assert!(list(&*storage).unwrap().iter().map(|found| found.step).eq([1]), "{limit}");
        assert!(old.is_in(&Checkpoint::open(storage.clone(), 1).unwrap()).unwrap());
        limit += 37;
    }
    assert!(limit > 1000, "{limit}");
    assert!(new.is_in(&Checkpoint::open(storage, 2).unwrap()).unwrap());
}

#[test]
fn too_little_space_is_found_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Custom::new(Arc::new(LocalStorage::new(folder.path().join("new"))), Free(1000));
    check_space(&storage, 1000).unwrap();
    let error = check_space(&storage, 1001).unwrap_err().to_string();
    assert!(error.contains("needs 1001 bytes") && error.contains("only 1000 bytes free"), "{error}");
    let snapshot = Sample::new(&[300], 1).cut(&[], 1).remove(0);
    let error = write_rank(&storage, &Staging::new(1).unwrap(), 0, &snapshot).unwrap_err();
    assert!(matches!(error, Error::NoSpace { free: 1000, .. }), "{error}");
    assert!(!folder.path().join("new").exists());
}

#[test]
fn the_free_space_of_a_folder_is_known_before_it_exists() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("a/b/c"), "not-there".into()] {
        assert!(LocalStorage::new(path).free_space().unwrap().is_some_and(|free| free > 0));
    }
}
