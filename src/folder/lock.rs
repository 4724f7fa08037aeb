//! The lock on a run's folder.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::{FdFlags, fcntl_setfd};

/// Locked by the run that is at work in a folder; it stays there, empty.
const LOCK_FILE: &str = ".brigade.lock";

/// How long a run that was killed may still hold its folder: its ranks end after their launcher.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks a run's folder, or that of its checkpoints, which `option` names, until the file is closed here and in all child
/// processes, which inherit it. A file system without locks goes without.
///
/// # Errors
/// If somebody else has held it for five seconds, or the lock cannot be made.
pub fn hold(folder: &Path, option: &str) -> anyhow::Result<Option<File>> {
    let path = folder.join(LOCK_FILE);
    // Open for writing: network file systems lock no other files.
    let file = File::options().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("{option} {}: cannot write {LOCK_FILE}", folder.display()))?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{option} {}: another run is at work in this folder, or stopped there",
                    folder.display()
                )
            }
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
    fcntl_setfd(&file, FdFlags::empty()).context("handing the folder's lock to the ranks")?;
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = hold(folder.path(), "--out").unwrap().unwrap();
        let waits = std::thread::spawn({
            let folder = folder.path().to_owned();
            move || hold(&folder, "--out").unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        drop(held);
        assert!(waits.join().unwrap());
    }
}
