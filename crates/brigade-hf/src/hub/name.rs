//! Names of models on the hub.

use std::fmt;
use std::str::FromStr;

use crate::error::HfError;

/// The revision that a name without one means.
const MAIN: &str = "main";

/// The name of a model on the hub: `organization/name`, with `@revision` (a branch, a tag or a commit) or without.
///
/// ```
/// use brigade_hf::hub::ModelName;
///
/// let name: ModelName = "meta-llama/Llama-3.2-1B@v1".parse()?;
/// assert_eq!((name.repository(), name.revision()), ("meta-llama/Llama-3.2-1B", "v1"));
/// # Ok::<(), brigade_hf::HfError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelName {
    repository: String,
    revision: String,
}

impl ModelName {
    /// `organization/name`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The branch, tag or commit; `main` if none was given.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// The same model at another revision.
    pub(super) fn at(&self, revision: &str) -> Self {
        Self { revision: revision.to_owned(), ..self.clone() }
    }
}

impl FromStr for ModelName {
    type Err = HfError;

    fn from_str(text: &str) -> Result<Self, HfError> {
        let wrong = || HfError::Hub {
            model: text.to_owned(),
            problem: "it is neither a folder nor the name of a model on the hub, `organization/name` or \
                      `organization/name@revision`"
                .to_owned(),
        };
        let (repository, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let parts: Vec<_> = repository.split('/').collect();
        let revision_parts = revision.split('/');
        if parts.len() > 2 || !parts.into_iter().chain(revision_parts).all(is_part) {
            return Err(wrong());
        }
        Ok(Self { repository: repository.to_owned(), revision: revision.to_owned() })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            MAIN => f.write_str(&self.repository),
            revision => write!(f, "{}@{revision}", self.repository),
        }
    }
}

/// Whether this may be a part of a name or of a path: letters, digits and some signs, but no `.` or `..`.
pub(super) fn is_part(part: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '=');
    !part.is_empty() && part.chars().all(known) && !part.chars().all(|c| c == '.')
}
