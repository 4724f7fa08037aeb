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
    },
}

/// What an error says, with its innermost cause where the outer ones do not mention it.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let innermost = cause.to_string();
    if !text.contains(&innermost) {
        text = format!("{text}: {innermost}");
    }
    // Stores answer with whole pages.
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A longer answer of a store is cut.
const MOST_CHARACTERS: usize = 600;
