//! The process table, from `/proc`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// How long processes may outlive a kill.
const GONE: Duration = Duration::from_secs(5);
/// How often the table is read.
const POLL: Duration = Duration::from_millis(5);

fn all() -> impl Iterator<Item = u32> {
    let names = fs::read_dir("/proc").into_iter().flatten();
    names.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The ranks that a launcher has started.
pub fn ranks(launcher: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        fields.next() != Some("Z") && fields.next() == Some(&launcher.to_string())
    };
    let mut ranks: Vec<_> = all().filter(is_child).collect();
    ranks.sort_unstable();
    ranks
}

/// Kills a process. Whether it existed.
pub fn kill(pid: u32) -> bool {
    send(pid, Signal::KILL)
}

/// Sends a process a signal. Whether it existed.
pub fn send(pid: u32, signal: Signal) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| kill_process(pid, signal).is_ok())
}

/// Waits until no process has a folder as its working directory.
///
/// # Errors
/// If that takes until 5 s after `since`.
pub fn wait_until_gone(folder: &Path, since: Instant) -> Result<()> {
    let works = |pid: &u32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder);
    loop {
        let left: Vec<_> = all().filter(works).collect();
        ensure!(
            since.elapsed() < GONE,
            "5 s after the kill these processes are still running, or ended only just now: {left:?}"
        );
        if left.is_empty() {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_found_where_it_works_and_gone_when_killed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let mut child = Command::new("sleep").arg("60").current_dir(&folder).spawn().unwrap();
        assert!(ranks(std::process::id()).contains(&child.id()));
        assert!(wait_until_gone(&folder, Instant::now().checked_sub(GONE).unwrap()).is_err());
        assert!(kill(child.id()));
        child.wait().unwrap();
        wait_until_gone(&folder, Instant::now()).unwrap();
        assert!(!kill(child.id()));
    }
}
