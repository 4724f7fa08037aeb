//! Why a link cannot continue.

/// Why a link cannot continue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The peer closed it.
    Closed,
    /// The connection broke.
    Broken(String),
    /// The peer's positions are invalid.
    Corrupt(&'static str),
}
