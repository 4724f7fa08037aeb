//! Where a save writes before it is published.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Longest id of a save, in characters.
const MAX_ID_CHARACTERS: usize = 64;

/// Identifies a save: its step, and an id that no other save has.
///
/// One rank creates it and sends it to all others (it can be serialized).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct StagingDir {
    step: u64,
    id: String,
}

#[derive(Deserialize)]
struct Unchecked {
    step: u64,
    id: String,
}

impl TryFrom<Unchecked> for StagingDir {
    type Error = Error;

    fn try_from(given: Unchecked) -> Result<Self> {
        Self::with_id(given.step, &given.id)
    }
}

impl StagingDir {
    /// A new save of `step` (completed training steps), with a random id.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new(step: u64) -> Result<Self> {
        let number = getrandom::u64().map_err(|error| Error::Io {
            operation: "draw",
            path: "a random id".into(),
            source: error.into(),
        })?;
        Ok(Self { step, id: format!("{number:016x}") })
    }

    /// A new save of `step` with the given id.
    ///
    /// # Errors
    /// When the id is empty, longer than 64 characters, or not of `a-z`, `0-9`.
    pub fn with_id(step: u64, id: &str) -> Result<Self> {
        if !is_id(id) {
            return Err(Error::InvalidName {
                what: "id of a save",
                given: id.into(),
                allowed: "1 to 64 characters of a-z and 0-9",
            });
        }
        Ok(Self { step, id: id.into() })
    }

    /// Completed training steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Distinguishes this save from others of the same step.
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for StagingDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the save of step {} ({})", self.step, self.id)
    }
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID_CHARACTERS).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_leave_the_folder() {
        for bad in ["", "../x", "a/b", "A", "a.b", &"a".repeat(65)] {
            assert!(StagingDir::with_id(1, bad).is_err(), "{bad}");
            let json = format!("{{\"step\":1,\"id\":{bad:?}}}");
            assert!(serde_json::from_str::<StagingDir>(&json).is_err(), "{bad}");
        }
        let save = StagingDir::new(7).unwrap();
        let json = serde_json::to_string(&save).unwrap();
        assert_eq!(serde_json::from_str::<StagingDir>(&json).unwrap(), save);
    }
}
