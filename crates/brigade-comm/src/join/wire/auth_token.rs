//! The secret of a world.

use std::fmt;

use crate::error::Error;

/// The secret that all ranks of a world share and that nobody else knows.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthToken(String);

impl AuthToken {
    /// A given secret. An empty one is refused by [`join`](crate::join()).
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// A new secret of 256 random bits, in hexadecimal.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub fn random() -> Result<Self, Error> {
        let bytes: [u8; 32] = random()?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The secret itself, to be handed to another rank.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// Does not show the secret.
impl fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthToken(…)")
    }
}

/// Unpredictable bytes.
pub(in crate::join) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::System { what: "get random numbers", reason: error.to_string() })?;
    Ok(bytes)
}
