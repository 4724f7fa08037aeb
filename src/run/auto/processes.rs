//! The processes of a trial.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for processes that were killed.
const DEADLINE: Duration = Duration::from_secs(10);

/// How often they are looked at.
const POLL: Duration = Duration::from_millis(10);

/// Processes that have a path in their command lines, by their folders in `/proc`; none where there is no such folder. Ranks are in process groups of their own, and
/// outlive their launcher for a moment.
pub fn processes_with(path: &Path) -> Vec<PathBuf> {
    let wanted = path.as_os_str().as_bytes();
    let has_it = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        line.windows(wanted.len().max(1)).any(|words| words == wanted)
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    all.filter(has_it).collect()
}

/// Waits until these have ended, so that what they held is free.
pub fn wait_for(processes: &[PathBuf]) {
    let deadline = Instant::now() + DEADLINE;
    while !processes.iter().all(|process| has_ended(process)) && Instant::now() < deadline {
        std::thread::sleep(POLL);
    }
}

/// Whether a process is gone, or nothing is left of it but its exit status.
fn has_ended(process: &Path) -> bool {
    let Ok(stat) = fs::read_to_string(process.join("stat")) else { return true };
    // The name before the state may have anything in it.
    stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with(['Z', 'X']))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn processes_are_found_by_their_arguments_until_they_end() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(processes_with(folder.path()), Vec::<PathBuf>::new());
        let mut command = Command::new("sh");
        command.args(["-c", "read line; :"]).arg(folder.path().join("run")).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let folder = folder.path();
        let found = PathBuf::from(format!("/proc/{}", child.id()));
        while processes_with(folder) != [found.clone()] {
            std::thread::sleep(POLL);
        }
        assert!(!has_ended(&found));
        child.kill().unwrap();
        // Before anybody has asked how it ended.
        wait_for(std::slice::from_ref(&found));
        assert!(has_ended(&found));
        child.wait().unwrap();
        assert!(has_ended(&found) && processes_with(folder).is_empty());
    }
}
