//! Checkpoints of a run: when they are saved, and how a run goes on from them.
//!
//! Ranks act on a save together: at the end of each step all tell each other how far they are, and take the same next step
//! from the same answers. So no rank waits for a slower disk than its own, and no background thread communicates.

mod background;
mod compatibility;
mod restore;
mod saver;
mod shared_storage;
#[cfg(test)]
mod tests;

pub(crate) use compatibility::{changes, newest};
pub(crate) use restore::{Point, Resumption, restore};
pub(crate) use saver::{Outcome, Progress, Saver, refuse_checkpoints};

/// What a checkpoint says of its run beside the state of training.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct RunDescription {
    /// Tells the run from others; it stays when the run goes on.
    pub run: String,
    /// The resolved configuration, with what each `auto` stood for.
    pub configuration: serde_json::Value,
    /// For each parameter, its name in a file of weights.
    pub file_names: std::collections::BTreeMap<String, String>,
}
