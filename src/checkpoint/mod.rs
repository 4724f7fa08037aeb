//! Checkpoints of a run: when they are saved, and how a run resumes from them.
//!
//! Ranks save together. At the end of each step they gather how far each of them is with its save, and all decide the same next
//! action from that. So no rank waits for a slower disk than its own, and no background thread communicates.

mod consolidate;
mod lease;
mod models;
mod newest;
mod progress;
mod restore;
mod retention;
mod saver;
mod shared_storage;
#[cfg(test)]
mod tests;

use brigade_models::Stored;
use brigade_sorted::SortedMap;

pub use consolidate::consolidate;
pub(crate) use models::{FIRST_MODEL, ModelReader, ModelSnapshot};
pub(crate) use newest::newest;
pub(crate) use progress::RunProgress;
pub use progress::best_step;
pub(crate) use restore::{Restored, restore, restore_step};
pub(crate) use retention::refuse_checkpoints;
pub(crate) use saver::{SaveOutcome, SaveProgress, Saver};

/// The description of its run that a checkpoint contains besides the state of training.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct RunDescription {
    /// Identifies the run; a resumed run keeps it.
    pub run: String,
    /// The resolved configuration, with every `auto` replaced by what it stood for.
    pub configuration: serde_json::Value,
    /// Where each parameter of the first model is in a file of weights.
    pub file_names: FileNames,
    /// Seconds that each block took for a micro-batch, by name, where the stages are balanced by that (`pipeline.balance`).
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub block_seconds: SortedMap<String, f64>,
    /// How they were measured: what changes the time of a block.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub block_seconds_of: String,
    /// Where the parameters of each additional model are ([`Trainer::add_model`](crate::Trainer::add_model)), by its name; parameters have the
    /// names that they have in their model.
    #[serde(default, skip_serializing_if = "SortedMap::is_empty")]
    pub further: SortedMap<String, FileNames>,
}

/// Where parameters are in a file of weights, by name.
pub type FileNames = SortedMap<String, Stored>;
