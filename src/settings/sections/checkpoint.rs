//! Settings of checkpoints, and of the reaction to failures.

use serde::{Deserialize, Serialize};

use crate::settings::sections::metric_mode::{LOSS, MetricMode};

/// What to do when loss or gradient norm is not finite.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// End the run; the message names rank, step and block.
    #[default]
    Stop,
    /// Leave weights and optimizer unchanged and continue with the next step.
    Skip,
    /// Roll back to the newest checkpoint and continue with the data after the bad batch.
    Rollback,
}

/// What to do when a checkpoint cannot be saved, or a line of `metrics.jsonl` or an event cannot be written (a full disk).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailedSave {
    /// End the run with a message.
    #[default]
    Stop,
    /// Warn (about metrics and events only once) and try again at the next one. A run still starts only if both can be written.
    Continue,
}

/// `[checkpoint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Steps between checkpoints, with another one at the end. 0 saves only on preemption, when a signal announces that the
    /// machine will be taken away, and the best ones if the run keeps them.
    pub every: u64,
    /// How many of the newest checkpoints to keep; 0 keeps all.
    pub keep: usize,
    /// Whether a checkpoint is saved after each validation that was the best so far, and kept until a better one comes.
    pub keep_best: bool,
    /// What decides which validation is the best: `loss`, or the name of a metric.
    pub best_metric: String,
    /// `min` (lower is better), `max` (higher is better) or `auto`: `min` if the metric's name ends in `loss`, `error` or `perplexity`, or is one of their abbreviations (`mse`, `ppl` and so on), else `max`.
    pub best_mode: MetricMode,
    /// Whether the run ends with the weights of the best checkpoint, in `model.safetensors` and in memory, instead of those of the
    /// last step.
    pub load_best_at_end: bool,
    /// Folder, or URL of an object store; empty stands for `checkpoints` in the run's folder, or below its URL. All nodes must share it.
    pub dir: String,
    /// Whether training continues while a checkpoint is written.
    pub asynchronous: bool,
    /// `stop` or `continue`: what to do when a checkpoint cannot be saved, or metrics and events cannot be written.
    pub on_failure: OnFailedSave,
    /// Timeout of a save, in seconds.
    pub timeout_seconds: f64,
    /// Where no lock keeps two runs apart (object stores, file systems without locks), a run holds a lease, which it renews while it lives. This
    /// many seconds after its last sign of life, another run may take its place.
    pub lease_seconds: f64,
}

impl Default for CheckpointSettings {
    fn default() -> Self {
        Self {
            every: 100,
            keep: 3,
            keep_best: false,
            best_metric: LOSS.into(),
            best_mode: MetricMode::Auto,
            load_best_at_end: false,
            dir: String::new(),
            asynchronous: true,
            on_failure: OnFailedSave::Stop,
            timeout_seconds: 1800.0,
            lease_seconds: 60.0,
        }
    }
}

/// The folder of checkpoints in a run's folder.
pub const CHECKPOINT_FOLDER: &str = "checkpoints";

impl CheckpointSettings {
    /// Makes the path absolute, so that it means the same wherever the configuration is read again.
    pub(crate) fn resolve(&mut self) {
        if !(self.dir.is_empty() || self.dir.contains("://"))
            && let Ok(absolute) = std::path::absolute(&self.dir)
        {
            self.dir = absolute.to_string_lossy().into_owned();
        }
    }

    /// Whether the checkpoint of this step is a regular one, not one saved because of an interruption.
    pub(crate) fn is_regular(&self, step: u64) -> bool {
        step.is_multiple_of(self.every.max(1))
    }
}
