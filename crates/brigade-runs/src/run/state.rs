//! What became of a run.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use brigade_report::{HistoryRecord, METRICS_FILE, RunEvent, StepRecord};
use serde::Serialize;

/// Held by the run in a folder; the file names the start of the system on which it was held last.
const LOCK_FILE: &str = ".brigade.lock";

/// A run whose lock may be held on another host counts as stopped when it has written no step for this long plus a few steps: a step may be
/// followed by a validation or a checkpoint.
const SILENCE: Duration = Duration::from_secs(60);

/// How many more steps.
const SILENT_STEPS: f64 = 20.0;

/// What became of a run, as far as its folder says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// A process holds the folder's lock, and its ranks were not ready for a step yet.
    Preparing,
    /// A process holds the folder's lock, or one on another host, whose lock may not be visible here, writes steps.
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
    /// From the folder's lock, its history and when the last step was written; of older runs, which have no history, from the files that a run
    /// leaves.
    pub(super) fn of(dir: &Path, history: &[HistoryRecord], last: Option<&StepRecord>) -> Self {
        if is_locked(dir) {
            let is_ready = history.last().is_none_or(|record| record.event != RunEvent::Launched);
            return if is_ready { Self::Running } else { Self::Preparing };
        }
        match Self::of_history(dir, history) {
            Self::Killed if writes_elsewhere(dir, last) => Self::Running,
            state => state,
        }
    }

    /// Of a run that nobody is at work on.
    fn of_history(dir: &Path, history: &[HistoryRecord]) -> Self {
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
            Self::Preparing => "preparing",
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

/// Whether a process is at work on a run, if its history has no end.
pub(super) fn is_in_progress(dir: &Path, last: Option<&StepRecord>) -> bool {
    is_locked(dir) || writes_elsewhere(dir, last)
}

/// Whether a process holds the lock of a run's folder. The lock is asked for shared and given back at once, so that a run that
/// starts now, which waits for seconds, is not kept from it.
pub(super) fn is_locked(dir: &Path) -> bool {
    let Ok(file) = File::open(dir.join(LOCK_FILE)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Whether a process on another host may be at work. Not every file system shows its lock, but all show that it writes.
fn writes_elsewhere(dir: &Path, last: Option<&StepRecord>) -> bool {
    let steps = last.map_or(0.0, |last| SILENT_STEPS * last.step_seconds);
    let silence = SILENCE + Duration::try_from_secs_f64(steps).unwrap_or_default();
    let changed = dir.join(METRICS_FILE).metadata().and_then(|file| file.modified());
    let is_recent = |at| SystemTime::now().duration_since(at).unwrap_or_default() < silence;
    // A copy's file is new, but its steps are as old as they were.
    let at = |time| UNIX_EPOCH + Duration::try_from_secs_f64(time).unwrap_or_default();
    let made = last.and_then(|last| last.time).is_none_or(|time| is_recent(at(time)));
    made && changed.is_ok_and(is_recent) && !is_lock_of_this_host(dir)
}

/// Whether the lock was last held on this host, since its system was started: if it is free then, nobody is at work there.
fn is_lock_of_this_host(dir: &Path) -> bool {
    let named = fs::read_to_string(dir.join(LOCK_FILE)).unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    !named.is_empty() && boot.is_ok_and(|boot| boot.trim() == named)
}
