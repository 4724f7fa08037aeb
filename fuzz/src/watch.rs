//! Runs a target in a process of its own, so that its end or its silence is a finding, too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long one input may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks at the worker.
const LOOK: Duration = Duration::from_millis(20);

/// How a worker ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this exit code.
    Exited(i32),
    /// By a signal.
    Killed {
        /// The input that ran.
        number: u64,
        /// The signal.
        signal: i32,
    },
    /// It was killed, because one input took longer than the patience.
    Stuck {
        /// The input.
        number: u64,
    },
}

/// Where a worker notes the number of the input that it is about to run.
#[derive(Debug)]
pub struct Numbers(File);

impl Numbers {
    /// A worker's notes at a path.
    ///
    /// # Errors
    /// If there can be no such file.
    pub fn create(path: &Path) -> io::Result<Self> {
        File::create(path).map(Self)
    }

    /// Notes a number.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note(&self, number: u64) -> io::Result<()> {
        self.0.write_all_at(&number.to_le_bytes(), 0)
    }
}

/// The number that a worker has noted last; 0 before the first.
fn noted(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Starts a worker and waits until it ends, or notes no other number at `path` for longer than `patience`.
///
/// # Errors
/// If it cannot be started or waited for.
pub fn watch(worker: &mut Command, path: &Path, patience: Duration) -> io::Result<End> {
    let mut child = worker.spawn()?;
    let (mut last, mut since) = (None, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match (status.code(), status.signal()) {
                (Some(code), _) => End::Exited(code),
                (None, signal) => End::Killed { number: noted(path), signal: signal.unwrap_or_default() },
            });
        }
        let number = Some(noted(path));
        if number != last {
            (last, since) = (number, Instant::now());
        } else if since.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(End::Stuck { number: noted(path) });
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> End {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        Numbers::create(&path).unwrap().note(7).unwrap();
        watch(Command::new("sh").args(["-c", script]), &path, patience).unwrap()
    }

    #[test]
    fn every_end_is_told_from_the_others() {
        assert_eq!(shell("exit 3", PATIENCE), End::Exited(3));
        assert_eq!(shell("kill -ABRT $$", PATIENCE), End::Killed { number: 7, signal: 6 });
        assert_eq!(shell("exec sleep 60", Duration::from_millis(100)), End::Stuck { number: 7 });
    }
}
