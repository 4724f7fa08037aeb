//! The lock on a run's folder.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::io::{FdFlags, fcntl_setfd};

/// Locked by the run that uses the folder; the file stays there, and names the start of the system on which it was locked last.
const LOCK_FILE: &str = ".brigade.lock";

/// How long a killed run may still hold the lock: its ranks end after their launcher.
const PATIENCE: Duration = Duration::from_secs(5);

/// Locks a run's folder, or the folder of its checkpoints, until the file is closed here and in all child processes, which
/// inherit it. `option` names the folder's option in errors. `None` if the file system has no locks.
///
/// # Errors
/// If another process holds the lock for five seconds, or the file cannot be created.
pub fn lock_folder(folder: &Path, option: &str) -> anyhow::Result<Option<File>> {
    let path = folder.join(LOCK_FILE);
    // Open for writing: network file systems lock no other files.
    let file = File::options().create(true).append(true).open(&path);
    let mut file =
        file.with_context(|| format!("{option} {}: cannot write {LOCK_FILE}", folder.display()))?;
    let begin = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{option} {}: another run is using this folder, or is suspended in it",
                    folder.display()
                )
            }
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
    if let Some(boot) = boot_id() {
        // Others then cannot tell whether a lock that they do not see is free; no more is lost.
        drop(file.set_len(0).and_then(|()| file.write_all(boot.as_bytes())));
    }
    fcntl_setfd(&file, FdFlags::empty()).context("handing the folder's lock to the ranks")?;
    Ok(Some(file))
}

/// Names the start of the system that this process runs on.
pub(super) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Whether the lock of a run's folder was last held on this host, since its system was started: if it is free then, nobody is at work there.
pub fn is_lock_of_this_host(folder: &Path) -> bool {
    let named = std::fs::read_to_string(folder.join(LOCK_FILE)).unwrap_or_default();
    !named.is_empty() && boot_id().is_some_and(|boot| boot == named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_run_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let held = lock_folder(folder.path(), "--out").unwrap().unwrap();
        let waits = std::thread::spawn({
            let folder = folder.path().to_owned();
            move || lock_folder(&folder, "--out").unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        assert!(is_lock_of_this_host(folder.path()));
        drop(held);
        assert!(waits.join().unwrap());
    }
}
