//! Files that are complete or absent. Brigade writes every file that others read this way.
//!
//! An [`AtomicFile`] is written beside its target, as `.<name>.<8 random characters>.part`, flushed to the disk, and
//! renamed to the target.
//!
//! # Invariants
//! - **Readers** find the complete new file or the previous one, whatever happens to the writer.
//! - **Writers** share nothing, not even writers of one target: the last to commit wins.
//! - **Nothing remains** of a file that is dropped before it is committed. The leftovers of a killed process are removed by the
//!   next writer of the same target. A writer locks its file (`flock`) until it ends, and locked files are never touched. On a
//!   file system without locks, leftovers stay; if locks do not reach other machines, a writer there may seem dead to one here,
//!   and its [`commit`](AtomicFile::commit) fails.

mod cache;
mod stale;

use std::ffi::OsString;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use cache::cache_folder;
use tempfile::{Builder, NamedTempFile, PersistError};

/// How many random characters are in the name of a file that is being written.
const RANDOM_CHARACTERS: usize = 8;

/// The end of the name of a file that is being written.
const SUFFIX: &str = ".part";

/// How many bytes of the target's name are in it: names have at most 255 bytes.
const MAX_NAME_BYTES: usize = 200;

/// How often other writers may take a new file for a leftover, because they look just before it is locked.
const MAX_TRIES: usize = 100;

/// A file that is being written and does not have its name yet. Dropping this removes the file.
#[derive(Debug)]
pub struct AtomicFile {
    part: NamedTempFile,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates a file with the permissions of any new file. A file at `target` stays until [`commit`](Self::commit).
    ///
    /// # Errors
    /// If the file cannot be created, or `target` is something that a file must not replace (a folder, a device).
    pub fn create(target: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(target).is_ok_and(|there| !there.is_file() && !there.is_symlink()) {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it exists and is not a regular file"));
        }
        let (folder, prefix) = part_prefix(target)?;
        stale::remove(folder, &prefix);
        for _ in 0..MAX_TRIES {
            let part = Builder::new()
                .prefix(&prefix)
                .rand_bytes(RANDOM_CHARACTERS)
                .suffix(SUFFIX)
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(folder)
                .map_err(|error| about_target(&error, folder))?;
            match part.as_file().try_lock() {
                Ok(()) if part.as_file().metadata()?.nlink() == 0 => {}
                Err(TryLockError::WouldBlock) => {}
                // Without locks if the file system has none.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self { part, target: target.to_owned() }),
            }
        }
        Err(io::Error::other("other programs remove the file that is being written"))
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        self.part.as_file()
    }

    /// Flushes the file to the disk and renames it to the target, replacing any file there. The file may still be written to.
    ///
    /// # Errors
    /// If that fails. Nothing remains of the file then, unless only its new name could not be flushed to the disk.
    pub fn commit(self) -> io::Result<File> {
        self.commit_by(NamedTempFile::persist)
    }

    /// Like [`commit`](Self::commit), but does not replace anything.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if there is something at the target, which stays as it is; else as [`commit`](Self::commit).
    pub fn commit_new(self) -> io::Result<File> {
        self.commit_by(NamedTempFile::persist_noclobber)
    }

    fn commit_by(
        self,
        persist: fn(NamedTempFile, PathBuf) -> Result<File, PersistError>,
    ) -> io::Result<File> {
        let Self { part, target } = self;
        part.as_file().sync_all()?;
        let file = persist(part, target.clone()).map_err(|error| error.error)?;
        sync_folder(part_prefix(&target)?.0)?;
        // Only a file that is being written is locked.
        drop(file.unlock());
        Ok(file)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The error of the file itself does not tell its name, which nobody gave.
        self.part.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part.as_file_mut().flush()
    }
}

/// Writes a file with this content.
///
/// # Errors
/// As for [`AtomicFile`].
pub fn write_atomic(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(target)?;
    file.write_all(content)?;
    file.commit().map(drop)
}

/// Why something new cannot be made beside a target in this folder, without the new name, which nobody gave.
pub fn about_target(error: &io::Error, folder: &Path) -> io::Error {
    let kind = error.kind();
    if kind == ErrorKind::NotFound && !folder.is_dir() {
        return io::Error::new(kind, format!("the folder {} does not exist", folder.display()));
    }
    let mut inner = error.get_ref().and_then(|error| error.source());
    while let Some(cause) = inner {
        match cause.downcast_ref().and_then(io::Error::raw_os_error) {
            Some(code) => return io::Error::from_raw_os_error(code),
            None => inner = cause.source(),
        }
    }
    error.raw_os_error().map_or_else(|| io::Error::from(kind), io::Error::from_raw_os_error)
}

/// Where a target's new file is written: its folder, and the beginning of its name.
fn part_prefix(target: &Path) -> io::Result<(&Path, OsString)> {
    let name = target
        .file_name()
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it does not name a file"))?;
    let name = &name.as_bytes()[..name.len().min(MAX_NAME_BYTES)];
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder, OsString::from_vec([b".", name, b"."].concat())))
}

/// Flushes the names in a folder to the disk, if the file system supports it.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}
