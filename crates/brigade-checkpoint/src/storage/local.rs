//! Checkpoints in a folder of a file system.
//!
//! ```text
//! <root>/step-00000050/                       a checkpoint
//! <root>/.step-00000050.partial-<id>/      a save that is not published
//! <root>/step-00000050.old/                   the one that is being replaced; it counts as a checkpoint while the other is absent
//! <root>/.step-00000050.removed/              a checkpoint that is being removed
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use brigade_sorted::SortedMap;
use rustix::fs::statvfs;

use super::{CheckpointDir, StagingDir, Storage, StorageReader, StorageWriter};
use crate::error::{Error, Result};
use crate::format::names::{folder_step, step_folder};

/// Small items are collected up to this many bytes before they are written.
const BUFFER: usize = 1 << 20;

/// Ends the name of a checkpoint that a new one of the same step is replacing.
const OLD: &str = ".old";

/// Ends the name of a folder that is being removed.
const REMOVED: &str = ".removed";

/// Checkpoints in a folder. All nodes of a run must see the same folder.
///
/// Files are read at offsets, never mapped, so a file that is truncated meanwhile is an error and not a signal.
#[derive(Debug)]
pub struct LocalStorage {
    root: PathBuf,
    location: String,
}

impl LocalStorage {
    /// Checkpoints in the folder `root`, which the first save creates.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let location = root.display().to_string();
        Self { root, location }
    }

    /// Names in the root, sorted; none when there is no root.
    fn names(&self) -> Result<Vec<String>> {
        let read = |error| Error::io("list", &self.root)(error);
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(read)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(read)?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    /// Hides a visible folder, then removes it.
    fn discard(&self, name: &str) -> Result<()> {
        let hidden = format!(".{name}{REMOVED}");
        self.delete(&hidden)?;
        match fs::rename(self.root.join(name), self.root.join(&hidden)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            done => done.map_err(Error::io("hide", &self.root.join(name)))?,
        }
        self.delete(&hidden)
    }

    fn delete(&self, name: &str) -> Result<()> {
        let folder = self.root.join(name);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(Error::io("remove", &folder)),
        }
    }
}

impl Storage for LocalStorage {
    fn location(&self) -> &str {
        &self.location
    }

    fn staging_folder(&self, staging: &StagingDir) -> String {
        format!(".{}.partial-{}", step_folder(staging.step()), staging.id())
    }

    fn create(&self, folder: &str, name: &str, _bytes: u64) -> Result<Box<dyn StorageWriter>> {
        let folder = self.root.join(folder);
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = folder.join(name);
        // Its bytes may be those of other folders, too.
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done.map_err(Error::io("replace", &path))?,
        }
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        Ok(Box::new(LocalWriter { path, written: 0, file: BufWriter::with_capacity(BUFFER, file) }))
    }

    fn link(&self, from: &str, to: &str, name: &str) -> Result<()> {
        let [from, to] = [from, to].map(|folder| self.root.join(folder));
        fs::create_dir_all(&to).map_err(Error::io("create", &to))?;
        let path = to.join(name);
        fs::hard_link(from.join(name), &path).map_err(Error::io("link", &path))
    }

    fn open(&self, folder: &str, name: &str) -> Result<Option<Box<dyn StorageReader>>> {
        let path = self.root.join(folder).join(name);
        let file = match File::open(&path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            file => file.map_err(Error::io("open", &path))?,
        };
        let size = file.metadata().map_err(Error::io("read the size of", &path))?.len();
        Ok(Some(Box::new(LocalReader { path, file, size })))
    }

    fn published(&self) -> Result<Vec<CheckpointDir>> {
        let mut steps = SortedMap::new();
        for name in self.names()? {
            // Sorted by name, `step-…` comes before `step-….old`.
            if let Some(step) = folder_step(name.strip_suffix(OLD).unwrap_or(&name)) {
                steps.entry(step).or_insert(name);
            }
        }
        Ok(steps.into_iter().rev().map(|(step, folder)| CheckpointDir { step, folder }).collect())
    }

    fn publish(&self, staging: &StagingDir) -> Result<()> {
        let partial = self.root.join(self.staging_folder(staging));
        let name = step_folder(staging.step());
        let (visible, old) = (self.root.join(&name), self.root.join(format!("{name}{OLD}")));
        sync_folder(&partial)?;
        if visible.exists() {
            self.discard(&format!("{name}{OLD}"))?;
            fs::rename(&visible, &old).map_err(Error::io("set aside", &visible))?;
        }
        fs::rename(&partial, &visible).map_err(Error::io("publish", &partial))?;
        sync_folder(&self.root)?;
        if let Some(parent) = self.root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_folder(parent)?;
        }
        self.discard(&format!("{name}{OLD}"))
    }

    fn remove(&self, folder: &str) -> Result<()> {
        if folder_step(folder).is_some() {
            // Otherwise the one that it replaced would become visible again.
            self.discard(&format!("{folder}{OLD}"))?;
        }
        if folder.starts_with('.') { self.delete(folder) } else { self.discard(folder) }
    }

    fn unpublished(&self) -> Result<Vec<String>> {
        let names = self.names()?;
        let hidden = |name: &str| {
            name.strip_prefix('.')
                .and_then(|rest| rest.split_once('.'))
                .is_some_and(|(step, _)| folder_step(step).is_some())
        };
        let replaced = |name: &str| {
            name.strip_suffix(OLD)
                .is_some_and(|newer| folder_step(newer).is_some() && self.root.join(newer).exists())
        };
        Ok(names.into_iter().filter(|name| hidden(name) || replaced(name)).collect())
    }

    fn free_space(&self) -> Result<Option<u64>> {
        let existing = self.root.ancestors().find(|path| path.exists());
        let folder = existing.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let state =
            statvfs(folder).map_err(|error| Error::io("read the free space of", folder)(error.into()))?;
        Ok(Some(state.f_bavail.saturating_mul(state.f_frsize)))
    }
}

/// Flushes the names in a folder to the disk, if the file system supports it.
fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|file| file.sync_all());
    match synced {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced.map_err(Error::io("flush", folder)),
    }
}

struct LocalWriter {
    path: PathBuf,
    written: u64,
    file: BufWriter<File>,
}

impl StorageWriter for LocalWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io_after("write", self.path.display(), self.written))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { path, written, file } = *self;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error);
        file.and_then(|file| file.sync_all()).map_err(Error::io_after("flush", path.display(), written))
    }
}

struct LocalReader {
    path: PathBuf,
    file: File,
    size: u64,
}

impl StorageReader for LocalReader {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, offset).map_err(Error::io("read", &self.path))
    }
}
