//! The folder of tokenized corpora.
//!
//! ```text
//! <cache>/<key>/            a whole entry
//! <cache>/<key>.building/   an entry that is being written, by the process that holds the lock
//! <cache>/<key>.lock        locked while somebody builds <key>; holds that process's id
//! <cache>/<key>.pieces/     pieces of it, n/, n.building/ and n.lock likewise, until the entry is whole
//! <cache>/<key>.removing/   pieces that are no longer needed
//! <cache>/<id>.memo         contents of a corpus's files by size and time, so that they need not be read again
//! ```
//!
//! Locks go with their process, so a folder `<key>.building` whose lock is free has a dead writer and is removed. Pieces stay for a
//! week: the next process that needs the entry continues from them.

mod file_hashes;
mod lock;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub(crate) use file_hashes::{HashedFile, hashed_files};
pub(crate) use lock::{FileLock, LockWait};

use lock::bytes_in;

use crate::{Error, Progress, Result};

/// Pieces that nobody has added to for this long are removed.
const FORGOTTEN: Duration = Duration::from_secs(7 * 24 * 3600);

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

    /// The place of the entry that is named by what was hashed.
    pub(crate) fn named(cache: &Path, hasher: &blake3::Hasher) -> Self {
        Self::new(cache, hasher.finalize().to_hex()[..32].to_string())
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
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

    fn pieces(&self) -> PathBuf {
        self.cache.join(format!("{}.pieces", self.key))
    }

    /// The folder of piece `number`.
    pub(crate) fn piece(&self, number: usize) -> PathBuf {
        self.pieces().join(number.to_string())
    }

    pub(crate) fn piece_lock(&self, number: usize) -> PathBuf {
        self.pieces().join(format!("{number}.lock"))
    }

    /// The bytes of piece `number` that are written so far, while it is built.
    pub(crate) fn piece_bytes(&self, number: usize) -> u64 {
        bytes_in(&self.piece_building(number))
    }

    fn piece_building(&self, number: usize) -> PathBuf {
        self.pieces().join(format!("{number}.building"))
    }

    /// Waits until nobody else builds the entry; as long as it grows, or else until the timeout.
    pub(crate) fn lock(&self, timeout: Duration, progress: &dyn Progress) -> Result<FileLock> {
        FileLock::acquire(&self.lock_path(), Some(&self.building()), timeout, progress)
    }

    /// Builds the entry by `write`, in a folder aside, and puts it in place; an entry that is there is replaced. Nothing
    /// is left of it where `write` fails. The caller holds the lock.
    pub(crate) fn build(&self, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.remove_leftovers()?;
        build(&self.folder(), &self.building(), write)
    }

    /// Builds piece `number` in the same way. The caller holds its lock.
    pub(crate) fn build_piece(&self, number: usize, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let building = self.piece_building(number);
        remove_folder(&building)?;
        build(&self.piece(number), &building, write)
    }

    /// Whether the folder of pieces is there.
    pub(crate) fn has_pieces(&self) -> bool {
        self.pieces().exists()
    }

    /// Makes the folder of pieces.
    pub(crate) fn create_pieces(&self) -> Result<()> {
        let pieces = self.pieces();
        fs::create_dir_all(&pieces).map_err(|source| Error::io("create", &pieces, source))?;
        // Those that are used again are not forgotten; where the time cannot be set, they are only younger by what is added.
        drop(File::open(&pieces).and_then(|folder| folder.set_modified(SystemTime::now())));
        Ok(())
    }

    /// Removes all pieces. The caller holds the entry's lock.
    pub(crate) fn remove_pieces(&self) -> Result<()> {
        let (pieces, removing) = (self.pieces(), self.cache.join(format!("{}.removing", self.key)));
        remove_folder(&removing)?;
        // Under another name, nobody adds to them.
        match fs::rename(&pieces, &removing) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(Error::io("rename", &pieces, source)),
            Ok(()) => remove_folder(&removing),
        }
    }

    /// Removes the whole entry. The caller holds the lock.
    pub(crate) fn remove(&self) -> Result<()> {
        remove_folder(&self.folder())
    }

    /// Removes this entry's half-built folder, and of other entries what nobody builds and nobody will continue from.
    fn remove_leftovers(&self) -> Result<()> {
        let entries = fs::read_dir(&self.cache).map_err(|source| Error::io("list", &self.cache, source))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().and_then(|name| name.to_str()?.rsplit_once('.'));
            let Some((key, kind @ ("building" | "pieces" | "removing"))) = name else { continue };
            if kind == "pieces" && (key == self.key || !is_forgotten(&path)) {
                continue;
            }
            let other = Self { cache: self.cache.clone(), key: key.into() };
            // This entry's lock is the caller's. What somebody builds, or another user's, stays.
            let lock = match key == self.key {
                true => None,
                false => match FileLock::try_acquire(&other.lock_path()) {
                    Ok(Some(lock)) => Some(lock),
                    Ok(None) | Err(_) => continue,
                },
            };
            tracing::warn!("removing {}, left by a process that died", path.display());
            match remove_folder(&path) {
                Err(error) if lock.is_some() => tracing::warn!("{error}"),
                removed => removed?,
            }
        }
        Ok(())
    }
}

fn is_forgotten(path: &Path) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > FORGOTTEN))
}

/// Fills `building` by `write` and renames it to `folder`.
fn build(folder: &Path, building: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    fs::create_dir(building).map_err(|source| Error::io("create", building, source))?;
    let built = write(building).and_then(|()| {
        sync_folder(building)?;
        remove_folder(folder)?;
        fs::rename(building, folder).map_err(|source| Error::io("rename", building, source))?;
        folder.parent().map_or(Ok(()), sync_folder)
    });
    if built.is_err()
        && let Err(error) = remove_folder(building)
    {
        tracing::warn!("{error}");
    }
    built
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
    use crate::NoProgress;

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
        let _lock = FileLock::acquire(&alive.lock_path(), None, Duration::from_secs(5), &NoProgress).unwrap();
        let own = place(cache.path(), "own");
        own.build(|folder| write_synced(&folder.join("whole"), b"x")).unwrap();
        assert!(own.folder().join("whole").is_file());
        assert!(alive.building().is_dir());
        assert!(!own.building().exists() && !place(cache.path(), "dead").building().exists());
    }
}
