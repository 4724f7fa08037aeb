//! A lock between processes that ends with its holder.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, Progress, Result};

/// How often a waiting process looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// An exclusive lock on a file, held until it is dropped or its process dies. The file stays.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: File,
}

impl FileLock {
    /// The lock if nobody holds it.
    pub(crate) fn try_acquire(path: &Path) -> Result<Option<Self>> {
        let failed = |source| Error::io("lock", path, source);
        let mut file = open(path)?;
        match file.try_lock() {
            Ok(()) => {
                let write = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                write.map_err(failed)?;
                Ok(Some(Self { _file: file }))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// The lock as soon as it is free; `progress` says so where it has to wait.
    pub(crate) fn acquire(path: &Path, timeout: Duration, progress: &dyn Progress) -> Result<Self> {
        let begin = Instant::now();
        let mut waits = false;
        loop {
            if let Some(lock) = Self::try_acquire(path)? {
                if waits {
                    progress.finish();
                }
                return Ok(lock);
            }
            if !std::mem::replace(&mut waits, true) {
                progress.start(0, "waiting for another process to tokenize the same text");
            }
            let waited = begin.elapsed();
            if waited >= timeout {
                return Err(Self::timed_out(path, waited));
            }
            std::thread::sleep(INTERVAL.min(timeout - waited));
        }
    }

    /// The error of a wait that was too long.
    pub(crate) fn timed_out(path: &Path, waited: Duration) -> Error {
        Error::LockTimeout { path: path.into(), waited_seconds: waited.as_secs_f64(), holder: holder(path) }
    }
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    file.map_err(|source| Error::io("open", path, source))
}

/// The process that wrote itself into the lock file.
fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = open(path).and_then(|mut file| {
        file.rewind()
            .and_then(|()| file.read_to_string(&mut text))
            .map_err(|source| Error::io("read", path, source))
    });
    if read.is_err() || text.is_empty() { "(unknown)".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;

    #[test]
    fn waiting_ends_at_the_deadline_and_names_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.lock");
        let lock = FileLock::try_acquire(&path).unwrap().unwrap();
        let error = FileLock::acquire(&path, Duration::from_millis(60), &NoProgress).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        FileLock::acquire(&path, Duration::ZERO, &NoProgress).unwrap();
    }
}
