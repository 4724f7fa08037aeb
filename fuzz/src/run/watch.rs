//! Runs a target in a process of its own, so that its end or its silence is a finding, too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long one input may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

/// Where a worker notes the number of the input that it is about to run, and of the trial, so that each note differs from
/// the one before.
#[derive(Debug)]
pub struct Numbers {
    file: File,
    trials: u64,
}

impl Numbers {
    /// A worker's notes at a path.
    ///
    /// # Errors
    /// If there can be no such file.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, trials: 0 })
    }

    /// Notes a number.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note(&mut self, number: u64) -> io::Result<()> {
        self.trials += 1;
        let note = [number.to_le_bytes(), self.trials.to_le_bytes()];
        self.file.write_all_at(note.as_flattened(), 0)
    }
}

/// The number in a note; 0 before the first.
fn number(note: &[u8]) -> u64 {
    note.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Starts a worker and waits until it ends, or notes nothing at `path` for longer than `patience`.
///
/// # Errors
/// If it cannot be started or waited for.
pub fn watch(worker: &mut Command, path: &Path, patience: Duration) -> io::Result<End> {
    let mut child = worker.spawn()?;
    let noted = || fs::read(path).unwrap_or_default();
    let (mut last, mut since) = (noted(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match (status.code(), status.signal()) {
                (Some(code), _) => End::Exited(code),
                (None, signal) => {
                    End::Killed { number: number(&noted()), signal: signal.unwrap_or_default() }
                }
            });
        }
        let note = noted();
        if note != last {
            (last, since) = (note, Instant::now());
        } else if since.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(End::Stuck { number: number(&last) });
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
