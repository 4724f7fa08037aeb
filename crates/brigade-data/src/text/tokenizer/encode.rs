//! Encoding, with a cache of words.

use std::collections::HashMap;

use regex::Regex;
use tokenizers::Model;

use super::pre_tokenizer::{bytes_to_unicode, pre_tokenize};
use super::{EncodingMethod, Tokenizer};
use crate::Result;
use crate::text::panics::catch_panics;

/// How many words are cached. Text repeats itself: some ten thousand words make up nearly all of it.
const MAX_WORDS: usize = 1 << 16;

/// Longer words are not cached.
const MAX_WORD_BYTES: usize = 48;

/// The names of a tokenizer's special tokens.
pub(super) struct SpecialNames(Regex);

impl SpecialNames {
    pub(super) fn of(library: &tokenizers::Tokenizer) -> std::result::Result<Self, regex::Error> {
        let added = library.get_added_tokens_decoder().into_values();
        let mut names: Vec<_> = added
            .filter(|token| token.special && !token.content.is_empty())
            .map(|token| regex::escape(&token.content))
            .collect();
        names.sort_unstable();
        Regex::new(&names.join("|")).map(Self)
    }

    fn is_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

/// Encodes texts one after another and caches their words; the ids do not depend on earlier texts.
#[derive(Debug)]
pub struct CachingEncoder {
    tokenizer: Tokenizer,
    known: HashMap<Box<str>, Box<[u32]>>,
}

impl CachingEncoder {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, known: HashMap::new() }
    }

    /// As [`encode`](Self::encode) of a text that follows another one, whose end is `before`: without what the tokenizer puts before a text (the space of SentencePiece's). No token
    /// may belong to both.
    pub(crate) fn encode_after(&mut self, before: &str, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if before.is_empty() || self.method(text) != EncodingMethod::Library {
            return self.encode(text, ids);
        }
        let (mut known, mut both) = (Vec::new(), Vec::new());
        self.encode(before, &mut known)?;
        self.encode(&format!("{before}{text}"), &mut both)?;
        match both.strip_prefix(known.as_slice()) {
            Some(added) => ids.extend_from_slice(added),
            // A tokenizer that does not split text at white space.
            None => self.encode(text, ids)?,
        }
        Ok(())
    }

    /// As [`encode`](Self::encode) of a text whose first `prompt` bytes are a prompt; returns how many of the tokens are the prompt's. A token of both is the text's.
    pub(crate) fn encode_prompted(&mut self, text: &str, prompt: usize, ids: &mut Vec<u32>) -> Result<usize> {
        if self.method(text) == EncodingMethod::Bytes {
            self.encode(text, ids)?;
            return Ok(prompt);
        }
        let encoding = catch_panics(|| self.tokenizer.inner.library.encode(text, false));
        let encoding = encoding.map_err(|message| self.tokenizer.error(message))?;
        ids.extend(encoding.get_ids());
        Ok(encoding.get_offsets().iter().take_while(|(_, end)| *end <= prompt).count())
    }

    fn method(&self, text: &str) -> EncodingMethod {
        let special = self.tokenizer.inner.special.as_ref();
        match special.is_some_and(|names| names.is_in(text)) {
            true => EncodingMethod::Library,
            false => self.tokenizer.inner.encoding,
        }
    }

    /// Adds the ids of `text` to `ids`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](crate::Error::Tokenizer) where the library fails.
    pub fn encode(&mut self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        match self.method(text) {
            EncodingMethod::Bytes => ids.extend(text.bytes().map(u32::from)),
            EncodingMethod::Words => {
                for word in pre_tokenize(text) {
                    self.encode_word(word, ids)?;
                }
            }
            EncodingMethod::Library => {
                let encoding = catch_panics(|| self.tokenizer.inner.library.encode_fast(text, false));
                ids.extend(encoding.map_err(|message| self.tokenizer.error(message))?.get_ids());
            }
        }
        Ok(())
    }

    fn encode_word(&mut self, word: &str, ids: &mut Vec<u32>) -> Result<()> {
        if let Some(known) = self.known.get(word) {
            ids.extend(known);
            return Ok(());
        }
        let tokens =
            catch_panics(|| self.tokenizer.inner.library.get_model().tokenize(&bytes_to_unicode(word)));
        let tokens = tokens.map_err(|message| self.tokenizer.error(message))?;
        let start = ids.len();
        ids.extend(tokens.iter().map(|token| token.id));
        if word.len() <= MAX_WORD_BYTES && self.known.len() < MAX_WORDS {
            self.known.insert(word.into(), ids[start..].into());
        }
        Ok(())
    }
}
