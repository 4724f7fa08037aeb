//! The token by which the ranks of a world authenticate each other, as `BRIGADE_TOKEN` carries it.

use brigade_comm::AuthToken;

use crate::error::{Error, Result};

/// The environment variable that carries the token.
pub const TOKEN_VARIABLE: &str = "BRIGADE_TOKEN";

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

/// The token of the environment, if there is one. An empty variable counts as none.
pub fn token_from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<AuthToken>> {
    env(TOKEN_VARIABLE).filter(|text| !text.is_empty()).map(|text| parse_token(&text)).transpose()
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
}
