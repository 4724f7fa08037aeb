//! A lock between processes that ends with its holder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use crate::{Error, Progress, Result};

/// How often a waiting process looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// How often a holder shows that it works.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// An exclusive lock on a file, held until it is dropped or its process dies. The file stays.
#[derive(Debug)]
pub(crate) struct FileLock {
    file: File,
    /// When this process last showed that it works.
    shown: Mutex<Option<Instant>>,
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
                Ok(Some(Self { file, shown: Mutex::new(None) }))
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// The lock as soon as it is free; `progress` says so where it has to wait. Its holder is waited for as long as it
    /// [shows](Self::show_progress) that it works, or the folder that it builds grows, and else until the timeout.
    pub(crate) fn acquire(
        path: &Path,
        building: Option<&Path>,
        timeout: Duration,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let (mut wait, mut waits) = (LockWait::new(timeout), false);
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
            wait.check((shown_at(path), building.map(bytes_in)), path)?;
            std::thread::sleep(INTERVAL.min(timeout));
        }
    }

    /// Shows those who wait that this process works.
    pub(crate) fn show_progress(&self) {
        let Ok(mut shown) = self.shown.try_lock() else { return };
        if shown.is_none_or(|shown| shown.elapsed() >= SHOWN_EVERY) {
            // The file's time is what shows it. Where it cannot be written, others only wait less long.
            let _ = self.file.write_all_at(std::process::id().to_string().as_bytes(), 0);
            *shown = Some(Instant::now());
        }
    }
}

/// The wait for a process that holds a lock.
pub(crate) struct LockWait<S> {
    timeout: Duration,
    began: Instant,
    /// What it has done, and when that was first seen.
    seen: Option<(S, Instant)>,
}

impl<S: PartialEq> LockWait<S> {
    /// That ends when nothing has changed for so long.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, began: Instant::now(), seen: None }
    }

    /// Compares what the holder of a lock has done with what it had done before.
    ///
    /// # Errors
    /// [`Error::LockTimeout`] where it has been the same for too long.
    pub(crate) fn check(&mut self, now: S, lock: &Path) -> Result<()> {
        match &self.seen {
            Some((before, since)) if *before == now => {
                let idle = since.elapsed();
                if idle < self.timeout {
                    return Ok(());
                }
                Err(Error::LockTimeout {
                    path: lock.into(),
                    waited_seconds: self.began.elapsed().as_secs_f64(),
                    idle_seconds: idle.as_secs_f64(),
                    holder: holder(lock),
                })
            }
            _ => {
                self.seen = Some((now, Instant::now()));
                Ok(())
            }
        }
    }
}

/// When the holder of a lock last showed that it works.
fn shown_at(lock: &Path) -> Option<SystemTime> {
    fs::metadata(lock).and_then(|metadata| metadata.modified()).ok()
}

/// The bytes of the files in a folder; 0 where there is none.
pub(super) fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
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
        let error = FileLock::acquire(&path, None, Duration::from_millis(60), &NoProgress).unwrap_err();
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        FileLock::acquire(&path, None, Duration::ZERO, &NoProgress).unwrap();
    }

    #[test]
    fn a_holder_that_works_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.lock");
        let lock = FileLock::try_acquire(&path).unwrap().unwrap();
        lock.file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let mut wait = LockWait::new(Duration::ZERO);
        let building = folder.path().join("k.building");
        let mut look = || wait.check((shown_at(&path), bytes_in(&building)), &path);
        look().unwrap();
        lock.show_progress();
        look().unwrap();
        fs::create_dir(&building).unwrap();
        fs::write(building.join("train.bin"), "tokens").unwrap();
        look().unwrap();
        let error = look().unwrap_err().to_string();
        assert!(error.contains("k.lock") && error.contains("has made no progress for 0 s"), "{error}");
    }
}
