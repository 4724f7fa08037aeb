//! Errors that decide how a run ends, and how any error is printed.

mod message;

pub use message::{format_error, print_stderr};

use brigade_launch::exit;

/// A mistake of the user, found before training: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", format_error(.0))]
pub struct UsageError(pub anyhow::Error);

impl UsageError {
    /// The exit code of a command that ends with it: 1 if a node was lost meanwhile, which is nobody's mistake, else 2.
    pub fn exit_code(&self) -> u8 {
        match self.0.downcast_ref() {
            Some(brigade_launch::Error::NodeLost { .. }) => exit::FAILED,
            _ => exit::USAGE,
        }
    }
}

/// A signal ended the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The machine is about to be taken away; all ranks have saved and exit.
#[derive(Debug, thiserror::Error)]
#[error("preempted")]
pub(crate) struct Preempted;

/// A dry run has printed its description.
#[derive(Debug, thiserror::Error)]
#[error("dry run")]
pub(crate) struct DryRun;

/// A failure that all ranks agreed on: each ends with it, at the same point.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct AgreedError(pub String);

/// The run cannot resume from the checkpoint, or cannot save at its location; all ranks end with this error, and exit code 2.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointUsageError {
    /// The checkpoint belongs to another model, other data or other settings.
    #[error("{0}")]
    Incompatible(String),
    /// There is no checkpoint to resume from.
    #[error("{0} holds no checkpoint")]
    Missing(String),
    /// The ranks do not share the storage.
    #[error("{0}")]
    NotShared(String),
}
