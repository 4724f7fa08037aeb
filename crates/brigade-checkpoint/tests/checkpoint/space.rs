//! A disk that is full, before and during a save.

use std::io;
use std::sync::Arc;

use brigade_checkpoint::{Checkpoint, Error, LocalStorage, Result, StagingDir, Storage, list, write_shard};

use crate::sample::Sample;
use crate::storages::{Behaviour, Custom};

/// A disk that takes this many bytes.
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
    let shard = Sample::new(&[300], 1).cut(&[], 1).remove(0);
    let error = write_shard(&storage, &StagingDir::new(1).unwrap(), 0, &shard).unwrap_err();
    assert!(matches!(error, Error::NoSpace { free: 1000, .. }), "{error}");
    assert!(error.to_string().contains("only 1000 bytes free"), "{error}");
    assert!(!folder.path().join("new").exists());
}

#[test]
fn the_free_space_of_a_folder_is_known_before_it_exists() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("a/b/c"), "not-there".into()] {
        assert!(LocalStorage::new(path).free_space().unwrap().is_some_and(|free| free > 0));
    }
}

/// Says nothing about the free space, so that the disk itself must.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Silent;

#[cfg(target_os = "linux")]
impl Behaviour for Silent {}

#[cfg(target_os = "linux")]
#[test]
fn a_real_disk_that_fills() {
    brigade_testing::on_small_disk(256, |folder| {
        let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(folder.join("checkpoints")));
        let old = Sample::new(&[5_000], 1);
        old.save(&*storage, 1, 1).unwrap();
        let new = Sample::new(&[20_000], 2);
        assert!(matches!(new.save(&*storage, 2, 1).unwrap_err(), Error::NoSpace { .. }));
        let error = new.save(&Custom::new(storage.clone(), Silent), 2, 1).unwrap_err();
        let Error::DiskFull { path, written, .. } = &error else { panic!("{error}") };
        assert!(path.ends_with("rank-00000.safetensors") && *written < 256 << 10, "{error}");
        assert!(storage.unpublished().unwrap().is_empty());
        assert!(old.is_in(&Checkpoint::open(storage.clone(), 1).unwrap()).unwrap());
        old.save(&*storage, 2, 1).unwrap();
    });
}
