//! Files that are whole or absent: the one way in which Brigade writes a file that somebody reads.
//!
//! An [`AtomicFile`] is written beside its target, as `.<name>.<8 random characters>.part`, brought to the disk, and takes
//! the target's name by one rename.
//!
//! # Invariants
//! - **Readers** find all of the new file or what was there before, whatever happens to the writer.
//! - **Writers** share nothing, also of one target: the last to commit wins.
//! - **Nothing stays** of a file that is dropped before it is committed. What a killed process left is removed by the next
//!   writer of the same target. A writer locks what it writes (`flock`), and its end unlocks it; what is locked is never
//!   touched. On a file system without locks leftovers stay; on one whose locks do not reach other machines, a writer there
//!   may be taken for dead by one here, and its [`commit`](AtomicFile::commit) fails.

mod stale;

use std::ffi::OsString;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile, PersistError};

/// Random characters in the name of a file that is being written.
const RANDOM_CHARACTERS: usize = 8;

/// Ends the name of a file that is being written.
const SUFFIX: &str = ".part";

/// Bytes of the target's name in it: names are 255 bytes long at most.
const MAX_NAME_BYTES: usize = 200;

/// How often a new file may be taken for a leftover by other writers, who look in the moment before it is locked.
const MAX_TRIES: usize = 100;

/// A file that is being written and does not have its name yet. Dropping it removes it.
#[derive(Debug)]
pub struct AtomicFile {
    part: NamedTempFile,
    target: PathBuf,
}

impl AtomicFile {
    /// Starts a file with the permissions of any new one. What is at `target` stays until [`commit`](Self::commit).
    ///
    /// # Errors
    /// If the file cannot be made, or `target` is there and nothing that a file may replace (a folder, a device).
    pub fn create(target: &Path) -> io::Result<Self> {
        if fs::symlink_metadata(target).is_ok_and(|there| !there.is_file() && !there.is_symlink()) {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it is there and no regular file"));
        }
        let (folder, prefix) = part_prefix(target)?;
        stale::remove(folder, &prefix);
        for _ in 0..MAX_TRIES {
            let part = Builder::new()
                .prefix(&prefix)
                .rand_bytes(RANDOM_CHARACTERS)
                .suffix(SUFFIX)
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(folder)?;
            match part.as_file().try_lock() {
                Ok(()) if part.as_file().metadata()?.nlink() == 0 => {}
                Err(TryLockError::WouldBlock) => {}
                // A file system without locks goes without.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self { part, target: target.to_owned() }),
            }
        }
        Err(io::Error::other("other programs remove the file that is being written"))
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        self.part.as_file()
    }

    /// Brings the file to the disk and gives it its name; whatever had it is replaced. The file may be written to further.
    ///
    /// # Errors
    /// If that fails; then nothing stays of the file, but where only its new name could not be brought to the disk.
    pub fn commit(self) -> io::Result<File> {
        self.commit_by(NamedTempFile::persist)
    }

    /// The same, where nothing has the name.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if something has, which stays as it is; as [`commit`](Self::commit).
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
        self.part.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part.flush()
    }
}

/// Writes a file of this content.
///
/// # Errors
/// As those of [`AtomicFile`].
pub fn write_atomic(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::create(target)?;
    file.write_all(content)?;
    file.commit().map(drop)
}

/// Where a target is written aside: its folder, and how names there begin.
fn part_prefix(target: &Path) -> io::Result<(&Path, OsString)> {
    let name =
        target.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it names no file"))?;
    let name = &name.as_bytes()[..name.len().min(MAX_NAME_BYTES)];
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((folder, OsString::from_vec([b".", name, b"."].concat())))
}

/// Brings the names in a folder to the disk. File systems that cannot are let be.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}
