//! Checkpoints of a run: when they are saved, and how a run resumes from them.
//!
//! Ranks save together. At the end of each step they gather how far each of them is with its save, and all decide the same next
//! action from that. So no rank waits for a slower disk than its own, and no background thread communicates.

mod background;
mod compatibility;
mod models;
mod progress;
mod restore;
mod saver;
mod shared_storage;
#[cfg(test)]
mod tests;

pub(crate) use compatibility::{changes, newest};
pub(crate) use models::{FIRST_MODEL, ModelReader, ModelSnapshot};
pub(crate) use progress::RunProgress;
pub use progress::best_step;
pub(crate) use restore::{Restored, restore, restore_step};
pub(crate) use saver::{SaveOutcome, SaveProgress, Saver, refuse_checkpoints};

/// The description of its run that a checkpoint contains besides the state of training.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct RunDescription {
    /// Identifies the run; a resumed run keeps it.
    pub run: String,
    /// The resolved configuration, with every `auto` replaced by what it stood for.
    pub configuration: serde_json::Value,
    /// Where each parameter is in a file of weights.
    pub file_names: std::collections::BTreeMap<String, brigade_models::Stored>,
}
