//! The folder of tokenized corpora.
//!
//! ```text
//! <cache>/<key>/            a whole entry
//! <cache>/<key>.building/   an entry that is being written, by the process that holds the lock
//! <cache>/<key>.lock        locked while somebody builds <key>; holds that process's id
//! <cache>/<id>.memo         contents of a corpus's files by size and time, so that they need not be read again
//! ```
//!
//! Locks go with their process, so a folder `<key>.building` whose lock is free has a dead writer and is removed.

mod file_hashes;
mod lock;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

pub(crate) use file_hashes::{HashedFile, hashed_files};
pub(crate) use lock::FileLock;

use crate::{Error, Result};

/// Where one entry of the cache lies and is built.
#[derive(Debug, Clone)]
pub(crate) struct CacheEntry {
    cache: PathBuf,
    key: String,
}

impl CacheEntry {
    /// The place of `key` in `cache`, which exists.
    pub(crate) fn new(cache: &Path, key: String) -> Self {
        Self { cache: cache.into(), key }
    }

    /// The folder of the whole entry.
    pub(crate) fn folder(&self) -> PathBuf {
        self.cache.join(&self.key)
    }

    pub(crate) fn lock_path(&self) -> PathBuf {
        self.cache.join(format!("{}.lock", self.key))
    }

    fn building(&self) -> PathBuf {
        self.cache.join(format!("{}.building", self.key))
    }

    /// Builds the entry by `write`, in a folder aside, and puts it in place; an entry that is there is replaced. Nothing
    /// is left of it where `write` fails. The caller holds the lock.
    pub(crate) fn build(&self, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.remove_leftovers()?;
        let (building, folder) = (self.building(), self.folder());
        fs::create_dir(&building).map_err(|source| Error::io("create", &building, source))?;
        let built = write(&building).and_then(|()| {
            sync_folder(&building)?;
            remove_folder(&folder)?;
            fs::rename(&building, &folder).map_err(|source| Error::io("rename", &building, source))?;
            sync_folder(&self.cache)
        });
        if built.is_err()
            && let Err(error) = remove_folder(&building)
        {
            tracing::warn!("{error}");
        }
        built
    }

    /// Removes this entry's half-built folder, and those of other entries that nobody builds.
    fn remove_leftovers(&self) -> Result<()> {
        let entries = fs::read_dir(&self.cache).map_err(|source| Error::io("list", &self.cache, source))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let Some(key) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".building")) else {
                continue;
            };
            let other = Self { cache: self.cache.clone(), key: key.into() };
            // This entry's lock is the caller's.
            let free = key == self.key || FileLock::try_acquire(&other.lock_path())?.is_some();
            if free {
                tracing::warn!("removing {}, left by a process that died", path.display());
                remove_folder(&path)?;
            }
        }
        Ok(())
    }
}

/// Writes a small file and brings it to the disk.
pub(crate) fn write_synced(path: &Path, content: &[u8]) -> Result<()> {
    let write = || {
        let mut file = File::create(path)?;
        io::Write::write_all(&mut file, content)?;
        file.sync_all()
    };
    write().map_err(|source| Error::io("write", path, source))
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|source| Error::io("sync", path, source))
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path, source)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn place(cache: &Path, key: &str) -> CacheEntry {
        CacheEntry::new(cache, key.into())
    }

    #[test]
    fn a_build_that_fails_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let place = place(cache.path(), "k");
        let error = place.build(|folder| {
            fs::write(folder.join("half"), "x").unwrap();
            Err(Error::io("write", folder, io::ErrorKind::StorageFull.into()))
        });
        assert!(matches!(error, Err(Error::DiskFull { .. })));
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn folders_of_dead_writers_are_removed_and_those_of_the_living_stay() {
        let cache = tempfile::tempdir().unwrap();
        for key in ["own", "dead", "alive"] {
            fs::create_dir(place(cache.path(), key).building()).unwrap();
        }
        let alive = place(cache.path(), "alive");
        let _lock = FileLock::acquire(&alive.lock_path(), Duration::from_secs(5), || {}).unwrap();
        let own = place(cache.path(), "own");
        own.build(|folder| write_synced(&folder.join("whole"), b"x")).unwrap();
        assert!(own.folder().join("whole").is_file());
        assert!(alive.building().is_dir());
        assert!(!own.building().exists() && !place(cache.path(), "dead").building().exists());
    }
}
