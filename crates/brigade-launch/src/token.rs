//! The secret by which the ranks of a world recognise each other.

use std::fmt;

use crate::{Error, Result};

/// The secret by which the ranks of a world recognise each other: 16 to 256 visible ASCII characters, handed
/// to the ranks as `BRIGADE_TOKEN`. It is not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The environment variable that carries the token.
    pub const VARIABLE: &str = "BRIGADE_TOKEN";

    /// A fresh token of 256 random bits from the operating system, in hexadecimal.
    pub fn random() -> Result<Self> {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes).map_err(Error::Random)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Checks a token that the user chose.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let found = match text.len() {
            _ if !text.bytes().all(|b| b.is_ascii_graphic()) => {
                "a blank or a character that is not ASCII".into()
            }
            16..=256 => return Ok(Self(text)),
            n => format!("{n} characters"),
        };
        Err(Error::BadToken { found })
    }

    /// The token of the environment, if there is one. An empty variable counts as none.
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        env(Self::VARIABLE).filter(|text| !text.is_empty()).map(Self::new).transpose()
    }

    /// The secret itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_are_valid_and_differ() {
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 64);
        assert_eq!(Token::new(a.as_str()).unwrap(), a);
        assert!(!format!("{a:?}").contains(a.as_str()));
    }

    #[test]
    fn bad_tokens_are_refused_without_being_shown() {
        for text in ["short", "with a blank inside it", "ümlaut-ümlaut-ümlaut", &"x".repeat(257)] {
            let message = Token::new(text).unwrap_err().to_string();
            assert!(!message.contains(text), "{message}");
        }
        assert_eq!(Token::from_env(&|_| Some(String::new())).unwrap(), None);
    }
}
