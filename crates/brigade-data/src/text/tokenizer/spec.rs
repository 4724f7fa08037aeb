//! The tokenizer that a run asks for.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The smallest BPE vocabulary: the 256 bytes and the end-of-text token.
const MIN_VOCABULARY: usize = 257;

/// The largest BPE vocabulary that is trained.
const MAX_VOCABULARY: usize = 1_000_000;

/// A tokenizer by name: `bytes`, `bpe:<vocabulary size>`, or the path of a `tokenizer.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TokenizerSpec {
    /// Every byte is a token; 256 ends a text.
    Bytes,
    /// Byte-level BPE with at most this many tokens, the 256 bytes and the end of text among them, trained on the
    /// corpus.
    Bpe(usize),
    /// A file in the format of the `tokenizers` library.
    File(PathBuf),
}

impl Default for TokenizerSpec {
    fn default() -> Self {
        Self::Bpe(4096)
    }
}

impl FromStr for TokenizerSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse =
            |allowed: String| Error::InvalidSetting { option: "tokenizer", given: text.into(), allowed };
        if text == "bytes" {
            return Ok(Self::Bytes);
        }
        if let Some(size) = text.strip_prefix("bpe:") {
            let size = size.parse().ok().filter(|size| (MIN_VOCABULARY..=MAX_VOCABULARY).contains(size));
            let allowed =
                format!("bpe: needs a vocabulary of {MIN_VOCABULARY} to {MAX_VOCABULARY}, as in bpe:4096");
            return size.map(Self::Bpe).ok_or_else(|| refuse(allowed));
        }
        if text.ends_with(".json") {
            return Ok(Self::File(text.into()));
        }
        Err(refuse("it must be \"bytes\", \"bpe:4096\" or the path of a tokenizer.json".into()))
    }
}

impl fmt::Display for TokenizerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes"),
            Self::Bpe(size) => write!(f, "bpe:{size}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl TryFrom<String> for TokenizerSpec {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TokenizerSpec> for String {
    fn from(spec: TokenizerSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed() {
        for (text, spec) in [
            ("bytes", TokenizerSpec::Bytes),
            ("bpe:4096", TokenizerSpec::default()),
            ("a/tokenizer.json", TokenizerSpec::File("a/tokenizer.json".into())),
        ] {
            assert_eq!(text.parse::<TokenizerSpec>().unwrap(), spec);
            assert_eq!(spec.to_string(), text);
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<TokenizerSpec>(&json).unwrap(), spec);
        }
    }

    #[test]
    fn wrong_names_say_what_is_allowed() {
        for (text, part) in [
            ("bpe:10", "257 to 1000000"),
            ("bpe:", "bpe:4096"),
            ("bpe:-1", "bpe:4096"),
            ("gpt2", "tokenizer.json"),
        ] {
            let message = text.parse::<TokenizerSpec>().unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(&format!("tokenizer = {text}")), "{message}");
        }
    }
}
