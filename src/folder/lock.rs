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
    if !may_be_shared(folder) {
        name_host(&mut file);
    }
    fcntl_setfd(&file, FdFlags::empty()).context("handing the folder's lock to the ranks")?;
    Ok(Some(file))
}

/// Says in a lock's file which host has it. On a file system of several hosts only who has the folder's lease as well may say so.
pub(crate) fn name_host(file: &mut File) {
    if let Some(boot) = boot_id() {
        // Others then cannot tell whether a lock that they do not see is free; no more is lost.
        drop(file.set_len(0).and_then(|()| file.write_all(boot.as_bytes())));
    }
}

/// Names the start of the system that this process runs on.
pub(super) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// File systems, by their numbers in Linux' `linux/magic.h` and their own sources, whose locks may hold on one host alone, as they are mounted: NFS, FUSE, SMB 1 to 3, Lustre, GPFS,
/// Ceph, BeeGFS, 9P.
const SHARED: [u32; 9] = [
    0x6969,
    0x6573_5546,
    0xff53_4d42,
    0xfe53_4d42,
    0x0bd0_0bd0,
    0x4750_4653,
    0x00c3_6400,
    0x1983_0326,
    0x0102_1997,
];

/// Whether other hosts may use a folder without seeing its lock.
pub(crate) fn may_be_shared(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|found| is_shared(found.f_type as u32))
}

fn is_shared(kind: u32) -> bool {
    SHARED.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_of_several_hosts_are_known() {
        assert!(!may_be_shared(Path::new("/proc")) && !may_be_shared(Path::new("/nowhere")));
        let (nfs, fuse, ext4, tmpfs) = (0x6969, 0x6573_5546, 0xef53, 0x0102_1994);
        assert_eq!([nfs, fuse, ext4, tmpfs].map(is_shared), [true, true, false, false]);
    }

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
        assert_eq!(std::fs::read_to_string(folder.path().join(LOCK_FILE)).ok(), boot_id());
        drop(held);
        assert!(waits.join().unwrap());
    }
}
