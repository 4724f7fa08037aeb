//! Why a link cannot go on.

/// Why a link cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The peer let go of it.
    Closed,
    /// The connection broke.
    Broken(String),
    /// What the peer wrote cannot be.
    Corrupt(&'static str),
}
