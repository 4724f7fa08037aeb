//! Runs a target in a process of its own, so that a crash or a hang is a finding as well.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long one input may take.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How often the worker is polled.
const POLL: Duration = Duration::from_millis(20);

/// How a worker ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit code.
    Exited(i32),
    /// By a signal.
    Killed {
        /// The input that ran.
        number: u64,
        /// The signal.
        signal: i32,
    },
    /// It was killed because one input took longer than the time limit.
    TimedOut {
        /// The input.
        number: u64,
    },
}

/// Where a worker notes the number of the input that it is about to run, with a count, so that each note differs from the one
/// before.
#[derive(Debug)]
pub struct Notes {
    file: File,
    trials: u64,
}

impl Notes {
    /// A worker's notes at a path.
    ///
    /// # Errors
    /// If the file cannot be made.
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

/// Starts a worker and waits until it ends, or notes nothing at `path` for longer than `limit`.
///
/// # Errors
/// If it cannot be started or waited for.
pub fn watch(worker: &mut Command, path: &Path, limit: Duration) -> io::Result<Ended> {
    let mut child = worker.spawn()?;
    let noted = || fs::read(path).unwrap_or_default();
    let (mut last, mut since) = (noted(), Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(match (status.code(), status.signal()) {
                (Some(code), _) => Ended::Exited(code),
                (None, signal) => {
                    Ended::Killed { number: number(&noted()), signal: signal.unwrap_or_default() }
                }
            });
        }
        let note = noted();
        if note != last {
            (last, since) = (note, Instant::now());
        } else if since.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::TimedOut { number: number(&last) });
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        Notes::create(&path).unwrap().note(7).unwrap();
        watch(Command::new("sh").args(["-c", script]), &path, limit).unwrap()
    }

    #[test]
    fn every_end_is_told_from_the_others() {
        assert_eq!(shell("exit 3", TIME_LIMIT), Ended::Exited(3));
        assert_eq!(shell("kill -ABRT $$", TIME_LIMIT), Ended::Killed { number: 7, signal: 6 });
        assert_eq!(shell("exec sleep 60", Duration::from_millis(100)), Ended::TimedOut { number: 7 });
    }
}
