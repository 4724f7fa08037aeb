//! Settings of checkpoints, and of what else a run survives.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// What to do when loss or gradient norm is not finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// End the run; the message names rank, step and block.
    #[default]
    Stop,
    /// Leave weights and optimizer as they are and go on with the next step.
    Skip,
    /// Go back to the newest checkpoint, and on from there with the data that come after the bad batch.
    Rollback,
}

/// What to do when a checkpoint cannot be saved, or a line of `metrics.jsonl` or an event cannot be written (a full disk).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailedSave {
    /// End the run with a message.
    #[default]
    Stop,
    /// Say so, of metrics and events once, and try again at the next one. A run still begins only where both can be written.
    Continue,
}

/// `[checkpoint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Steps between checkpoints; with any, there is one at the end, too. 0 saves only when a signal announces that the
    /// machine is taken away.
    pub every: u64,
    /// Newest checkpoints that stay; 0 keeps all.
    pub keep: usize,
    /// Folder, or URL of an object store; empty is `checkpoints` in the run's folder. All nodes must reach it.
    pub dir: String,
    /// Whether training goes on while a checkpoint is written.
    pub asynchronous: bool,
    /// `stop` or `continue`: what to do when a checkpoint cannot be saved, or metrics and events cannot be written.
    pub on_failure: OnFailedSave,
    /// Longest time that a save may take, in seconds.
    pub timeout_seconds: f64,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self {
            every: 0,
            keep: 3,
            dir: String::new(),
            asynchronous: true,
            on_failure: OnFailedSave::Stop,
            timeout_seconds: 1800.0,
        }
    }
}

/// The folder of checkpoints in a run's folder.
pub const CHECKPOINT_FOLDER: &str = "checkpoints";

impl CheckpointSettings {
    /// Makes the folder mean the same wherever the configuration is read again.
    pub(crate) fn resolve(&mut self) {
        if !(self.dir.is_empty() || self.dir.contains("://"))
            && let Ok(absolute) = std::path::absolute(&self.dir)
        {
            self.dir = absolute.to_string_lossy().into_owned();
        }
    }

    /// Whether a checkpoint of this step is one that a run saves whatever interrupts it.
    pub(crate) fn is_regular(&self, step: u64) -> bool {
        step.is_multiple_of(self.every.max(1))
    }

    /// Where the checkpoints of the run in `out` are: a path or a URL.
    pub fn place(&self, out: &Path) -> String {
        match self.dir.as_str() {
            "" => out.join(CHECKPOINT_FOLDER).to_string_lossy().into_owned(),
            given => given.to_owned(),
        }
    }
}
