//! Errors that decide how a run ends, and how any error is printed.

mod message;

pub use message::{format_error, print_stderr};

use brigade_launch::exit;

/// A mistake of the user, found before training: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{}", format_error(.0))]
pub struct UsageError(pub anyhow::Error);

impl UsageError {
    /// The exit code of a command that ends with it: 1 for what is nobody's mistake and may be over when the command starts again, as a node that was lost or
    /// a store that does not answer, else 2.
    pub fn exit_code(&self) -> u8 {
        if self.0.chain().any(may_pass) { exit::FAILED } else { exit::USAGE }
    }
}

fn may_pass(cause: &(dyn std::error::Error + 'static)) -> bool {
    #[cfg(feature = "object-store")]
    if cause.downcast_ref().is_some_and(brigade_store::Error::may_pass) {
        return true;
    }
    matches!(cause.downcast_ref(), Some(brigade_launch::Error::NodeLost { .. }))
        || cause.downcast_ref().is_some_and(brigade_checkpoint::Error::may_pass)
        || cause.downcast_ref().is_some_and(brigade_data::Error::may_pass)
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

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn what_may_pass_is_no_wrong_usage() {
        let code = |error: anyhow::Error| UsageError(error).exit_code();
        let store = |may_pass| {
            let (operation, path, message) = ("read", "gs://a/b".to_owned(), "503".to_owned());
            brigade_checkpoint::Error::Object { operation, path, message, may_pass }
        };
        assert_eq!(code(store(true).into()), exit::FAILED);
        assert_eq!(code(Err::<(), _>(store(true)).context("--out").unwrap_err()), exit::FAILED);
        assert_eq!(code(store(false).into()), exit::USAGE);
        let io = |kind: std::io::ErrorKind| {
            let path = std::path::Path::new("a");
            code(brigade_checkpoint::Error::io("read", path)(kind.into()).into())
        };
        assert_eq!(io(std::io::ErrorKind::StaleNetworkFileHandle), exit::FAILED);
        assert_eq!(io(std::io::ErrorKind::PermissionDenied), exit::USAGE);
        assert_eq!(code(anyhow::anyhow!("--out is a file")), exit::USAGE);
    }
}
