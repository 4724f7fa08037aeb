//! A lock between processes that ends with its holder.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Error, Result};

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

    /// The lock as soon as it is free; calls `on_wait` once where it has to wait.
    pub(crate) fn acquire(path: &Path, timeout: Duration, on_wait: impl FnOnce()) -> Result<Self> {
        let begin = Instant::now();
        let mut on_wait = Some(on_wait);
        loop {
            if let Some(lock) = Self::try_acquire(path)? {
                return Ok(lock);
            }
            if let Some(on_wait) = on_wait.take() {
                on_wait();
            }
            let waited = begin.elapsed();
            if waited >= timeout {
                let holder = holder(path);
                return Err(Error::LockTimeout {
                    path: path.into(),
                    waited_seconds: waited.as_secs_f64(),
                    holder,
                });
            }
            std::thread::sleep(INTERVAL.min(timeout - waited));
        }
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

    #[test]
    fn waiting_ends_at_the_deadline_and_names_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.lock");
        let lock = FileLock::try_acquire(&path).unwrap().unwrap();
        let mut waits = 0;
        let error = FileLock::acquire(&path, Duration::from_millis(60), || waits += 1).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(waits, 1);
        drop(lock);
        FileLock::acquire(&path, Duration::ZERO, || panic!("nothing to wait for")).unwrap();
    }
}
