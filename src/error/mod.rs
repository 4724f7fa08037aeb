//! Errors that decide how a run ends, and how any error is printed.

mod message;

pub use message::{explain, tell};

/// A mistake of the user, found before training: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", explain(.0))]
pub struct Usage(pub anyhow::Error);

/// A signal ended the run.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// The machine is about to be taken away; all ranks saved and leave.
#[derive(Debug, thiserror::Error)]
#[error("preempted")]
pub(crate) struct Preempted;

/// The run was described, not run.
#[derive(Debug, thiserror::Error)]
#[error("dry run")]
pub(crate) struct DryRun;

/// What ends a run on all ranks alike.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Agreed(pub String);

/// A checkpoint is not of this run; all ranks say so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unfit(pub String);
