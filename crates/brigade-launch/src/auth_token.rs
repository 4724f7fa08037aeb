//! The token by which the ranks of a world authenticate each other, as `BRIGADE_TOKEN` or a file carries it.

use std::fs::File;
use std::io::{self, Read};

use brigade_comm::AuthToken;

use crate::error::{Error, Result};

/// The environment variable that carries the token.
pub const TOKEN_VARIABLE: &str = "BRIGADE_TOKEN";

/// The environment variable that names a file with the token, as schedulers mount secrets.
pub const TOKEN_FILE_VARIABLE: &str = "BRIGADE_TOKEN_FILE";

/// A file with more than this is not read whole.
const MAX_BYTES: u64 = 4096;

/// Checks a token that the user chose: 16 to 256 visible ASCII characters.
///
/// # Errors
/// [`Error::BadToken`], without the token.
pub fn parse_token(text: &str) -> Result<AuthToken> {
    let found = match text.len() {
        _ if !text.bytes().all(|b| b.is_ascii_graphic()) => "a blank or a character that is not ASCII".into(),
        16..=256 => return Ok(AuthToken::new(text)),
        n => format!("{n} characters"),
    };
    Err(Error::BadToken { found })
}

/// The token of the environment, if there is one: `BRIGADE_TOKEN` or else, without a line's end, the file that `BRIGADE_TOKEN_FILE` names. An empty
/// variable counts as none.
///
/// # Errors
/// [`Error::BadToken`] and [`Error::TokenFile`], without the token.
pub fn token_from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<AuthToken>> {
    let set = |name| env(name).filter(|text| !text.is_empty());
    if let Some(text) = set(TOKEN_VARIABLE) {
        return parse_token(&text).map(Some);
    }
    let Some(path) = set(TOKEN_FILE_VARIABLE) else { return Ok(None) };
    let read = || -> io::Result<String> {
        let mut text = String::new();
        File::open(&path)?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => parse_token(text.trim_end_matches(['\r', '\n'])).map(Some),
        Err(error) => Err(Error::TokenFile { path, reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_are_valid() {
        let token = AuthToken::random().unwrap();
        assert_eq!(parse_token(token.expose()).unwrap(), token);
    }

    #[test]
    fn bad_tokens_are_refused_without_being_shown() {
        for text in ["short", "with a blank inside it", "ümlaut-ümlaut-ümlaut", &"x".repeat(257)] {
            let message = parse_token(text).unwrap_err().to_string();
            assert!(!message.contains(text), "{message}");
        }
        assert_eq!(token_from_env(&|_| Some(String::new())).unwrap(), None);
    }

    #[test]
    fn a_token_may_be_in_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let token = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(known, _)| *known == name);
            token_from_env(&|name| found(name).map(|(_, value)| (*value).to_owned()))
        };
        std::fs::write(path, "0123456789abcdef\n").unwrap();
        let in_file = (TOKEN_FILE_VARIABLE, path);
        assert_eq!(token(&[in_file]).unwrap().unwrap().expose(), "0123456789abcdef");
        // What a launcher hands on comes first.
        let given = (TOKEN_VARIABLE, "fedcba9876543210");
        assert_eq!(token(&[in_file, given]).unwrap().unwrap().expose(), "fedcba9876543210");
        std::fs::write(path, "short").unwrap();
        assert!(token(&[in_file]).unwrap_err().to_string().contains("it has 5 characters"));
        let missing = token(&[(TOKEN_FILE_VARIABLE, "/no/such/token")]).unwrap_err().to_string();
        assert!(missing.starts_with("BRIGADE_TOKEN_FILE = /no/such/token cannot be read: "), "{missing}");
    }
}
