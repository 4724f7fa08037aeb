//! Why a link cannot go on.

/// Why a link cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The peer closed it.
    Closed,
    /// The connection broke.
    Broken(String),
    /// The peer's positions are invalid.
    Corrupt(&'static str),
}
