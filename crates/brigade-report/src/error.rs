//! What can go wrong with the files of a report.

use std::{io, net::SocketAddr, path::PathBuf};

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with the files of a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder holds the metrics of an earlier run.
    #[error("{path} already exists; give --overwrite to replace it, or another --out folder")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file or folder cannot be created, read, written or replaced (e.g. the disk is full).
    #[error("cannot {operation} {path}: {source}")]
    File {
        /// `create`, `read`, `write`, `replace` or `remove`.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The address for metrics cannot be listened at.
    #[error("cannot listen on output.metrics_addr (--metrics-addr) {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: the operation on the path failed.
    pub(crate) fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { operation, path, source }
    }
}
