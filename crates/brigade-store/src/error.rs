//! Errors, which name the URL.

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a store could not be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A URL that cannot be used. What may be secret in it is left out.
    #[error("{url}: {message}")]
    Url {
        /// The URL without user, password, query and fragment.
        url: String,
        /// What is wrong with it.
        message: String,
    },
    /// There is no such object.
    #[error("{url} does not exist")]
    NotFound {
        /// The object.
        url: String,
    },
    /// The object has changed since it was found.
    #[error("{url} changed while it was being read")]
    Changed {
        /// The object.
        url: String,
    },
    /// The store refused, or did not answer within the deadline.
    #[error("cannot {operation} {url}: {message}")]
    Failed {
        /// The operation, as a verb.
        operation: &'static str,
        /// The object or prefix.
        url: String,
        /// What the store said.
        message: String,
        /// Whether it may do it later: it did not answer, or was busy.
        may_pass: bool,
    },
}

impl Error {
    /// Whether the same may succeed later, without anybody changing anything.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Failed { may_pass: true, .. })
    }
}
