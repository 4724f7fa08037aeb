//! What became of a run.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::Path;

use brigade_report::{HistoryRecord, RunEvent};
use serde::Serialize;

/// What became of a run, as far as its folder says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process holds the folder's lock.
    Running,
    /// It took its last step and wrote its weights; a text if it ended before the step that was asked for.
    Finished(Option<String>),
    /// A rank failed: what the launcher said.
    Failed(String),
    /// A signal ended it.
    Interrupted(String),
    /// It saved a checkpoint because its machine was taken away.
    Preempted,
    /// It ended without a word: it was killed with its launcher, or its machine stopped.
    Killed,
}

impl RunState {
    /// From the folder's lock and history; of older runs, which have no history, from the files that a run leaves.
    pub(super) fn of(dir: &Path, history: &[HistoryRecord]) -> Self {
        if is_locked(dir) {
            return Self::Running;
        }
        match history.last().map(|record| &record.event) {
            Some(RunEvent::Finished { ended_early, .. }) => Self::Finished(ended_early.clone()),
            Some(RunEvent::Failed { reason }) => Self::Failed(reason.clone()),
            Some(RunEvent::Interrupted { signal }) => Self::Interrupted(signal.clone()),
            Some(RunEvent::Preempted) => Self::Preempted,
            Some(_) => Self::Killed,
            None if ["model.safetensors", "adapter_model.safetensors"]
                .iter()
                .any(|file| dir.join(file).exists()) =>
            {
                Self::Finished(None)
            }
            None if dir.join("flight").is_dir() => Self::Failed(String::new()),
            None => Self::Killed,
        }
    }

    /// In a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished(_) => "finished",
            Self::Failed(_) => "failed",
            Self::Interrupted(_) => "interrupted",
            Self::Preempted => "preempted",
            Self::Killed => "killed",
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        match self {
            Self::Finished(Some(why)) => write!(f, " early: {why}"),
            Self::Failed(why) if !why.is_empty() => write!(f, ": {why}"),
            Self::Interrupted(signal) => write!(f, " by {signal}"),
            _ => Ok(()),
        }
    }
}

/// Whether a process holds the lock of a run's folder. The lock is asked for shared and given back at once, so that a run that
/// starts now, which waits for seconds, is not kept from it.
pub(super) fn is_locked(dir: &Path) -> bool {
    let Ok(file) = File::open(dir.join(".brigade.lock")) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
