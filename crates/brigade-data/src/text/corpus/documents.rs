//! Reading the documents of a file as a stream of chunks.

use std::path::PathBuf;
use std::sync::Arc;

use super::bytes::BytesRead;
use super::files::{Format, SourceFile};
use super::input::Input;
use super::records::{Columns, Part, Record, RecordEncoder, RecordLocation, records};
use crate::{Error, Result};

/// Documents are read in chunks of about this many bytes, so that memory is bounded and one large document is tokenized by
/// all cores.
const CHUNK_BYTES: usize = 128 << 10;

/// A part of a document.
///
/// Chunks end before white space that follows something else. No word in GPT-2's splitting spans such a place, so byte-level
/// tokenizers give the same tokens as for the whole document; those that put something before a text need the word before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextChunk {
    pub(crate) text: String,
    /// The end of the chunk before, of the same text: a word, if it is short. Empty at the beginning.
    pub(crate) before: String,
    /// How many of its first bytes belong to the prompt.
    pub(crate) prompt: usize,
    /// Whether the text is a whole record as JSON, of which a [`RecordEncoder`] makes an example.
    pub(crate) is_record: bool,
    /// Where its document is.
    pub(crate) place: RecordLocation,
    /// Whether it is the last of its document.
    pub(crate) ends_document: bool,
}

/// A stream of chunks.
pub(crate) type TextChunks = Box<dyn Iterator<Item = Result<TextChunk>> + Send>;

/// The documents of a part of `file`, in order: of each record its `prompt`, if there is one, and its `text`, in one chunk if they fit, unless `encoder` makes
/// an example of it.
pub(crate) fn chunks(
    file: &SourceFile,
    part: &Part,
    columns: &Columns,
    encoder: Option<&Arc<dyn RecordEncoder>>,
    read: &BytesRead,
) -> Result<TextChunks> {
    if file.format == Format::Text {
        let (path, input) = (file.path.clone(), Input::open(file, 0, u64::MAX, read)?);
        let place = RecordLocation::file(&path);
        return Ok(Box::new(TextFileChunks {
            path,
            place,
            input,
            buffer: Vec::new(),
            before: String::new(),
            offset: 0,
            done: false,
        }));
    }
    let (records, encoder) = (records(file, part, columns, read)?, encoder.cloned());
    Ok(Box::new(records.flat_map(move |record| of_record(record, encoder.as_deref()))))
}

/// Cuts a document into chunks; errors are passed on. A record of which `encoder` makes nothing must have a text.
fn of_record(record: Result<Record>, encoder: Option<&dyn RecordEncoder>) -> Vec<Result<TextChunk>> {
    let cut_up = |record: Record| {
        let is_example =
            |encoder: &dyn RecordEncoder| encoder.takes(&record) || !record.fields.contains_key("text");
        if encoder.is_some_and(is_example) {
            let (text, place) = (record.json(), record.place);
            let before = String::new();
            return Ok(vec![TextChunk {
                text,
                before,
                prompt: 0,
                is_record: true,
                place,
                ends_document: true,
            }]);
        }
        if record.text("text")?.is_none() {
            return Err(record.place.error("the text is null, but must be a string"));
        }
        let chunk = |text, before, prompt, ends_document| {
            let place = record.place.clone();
            TextChunk { text, before, prompt, is_record: false, place, ends_document }
        };
        let [prompt, text] = [record.text("prompt")?, record.text("text")?].map(Option::unwrap_or_default);
        if !prompt.is_empty() && prompt.len() + text.len() <= CHUNK_BYTES {
            return Ok(vec![chunk([prompt, text].concat(), String::new(), prompt.len(), true)]);
        }
        let mut chunks = Vec::new();
        let mut before = String::new();
        for (mut rest, is_prompt) in [(prompt, true), (text, false)] {
            while !rest.is_empty() {
                let end = if rest.len() <= CHUNK_BYTES { rest.len() } else { cut(rest, CHUNK_BYTES) };
                let (text, left) = rest.split_at(end);
                let prompt = if is_prompt { text.len() } else { 0 };
                chunks.push(chunk(
                    text.into(),
                    std::mem::replace(&mut before, last_word(text)),
                    prompt,
                    false,
                ));
                rest = left;
            }
        }
        match chunks.last_mut() {
            Some(last) => last.ends_document = true,
            None => chunks.push(chunk(String::new(), String::new(), 0, true)),
        }
        Ok(chunks)
    };
    match record.and_then(cut_up) {
        Ok(chunks) => chunks.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// The last place at or below `limit` before white space that follows a letter or digit; if there is none, anything else (with which some tokenizers join the end of a
/// line); if there is none either, the last place between two characters.
fn cut(text: &str, limit: usize) -> usize {
    let limit = text.floor_char_boundary(limit);
    let last = |precedes: fn(char) -> bool| {
        let mut space = None;
        text[..limit].char_indices().rev().find_map(|(start, character)| {
            let after = space.take();
            space = character.is_whitespace().then_some(start);
            after.filter(|_| precedes(character))
        })
    };
    last(char::is_alphanumeric).or_else(|| last(|character| !character.is_whitespace())).unwrap_or(limit)
}

/// The last word of a text with the white space before it, or what it ends with if that is long.
fn last_word(text: &str) -> String {
    const MAX_BYTES: usize = 64;
    let end = &text[text.ceil_char_boundary(text.len().saturating_sub(MAX_BYTES))..];
    end[cut(end, end.len()) % end.len().max(1)..].to_owned()
}

/// A text file as one document.
struct TextFileChunks {
    path: PathBuf,
    place: RecordLocation,
    input: Input,
    buffer: Vec<u8>,
    /// The last word of the chunk before.
    before: String,
    /// Where the buffer begins in the file.
    offset: u64,
    done: bool,
}

impl Iterator for TextFileChunks {
    type Item = Result<TextChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let chunk = self.read_chunk();
        self.done = chunk.as_ref().map_or(true, |chunk| chunk.ends_document);
        Some(chunk)
    }
}

impl TextFileChunks {
    fn read_chunk(&mut self) -> Result<TextChunk> {
        let wanted = (CHUNK_BYTES - self.buffer.len().min(CHUNK_BYTES)) as u64;
        let read = self.input.read_up_to(wanted, &mut self.buffer);
        let after = |source| self.input.error(source, &format!(", after {} bytes of text", self.offset));
        let at_end = read.map_err(after)? < wanted;
        let valid = match std::str::from_utf8(&self.buffer) {
            Ok(text) => text,
            Err(error) => {
                let valid = error.valid_up_to();
                if error.error_len().is_some() || at_end {
                    return Err(Error::NotUtf8 {
                        path: self.path.clone(),
                        offset: self.offset + valid as u64,
                    });
                }
                // A character continues in the next chunk.
                std::str::from_utf8(&self.buffer[..valid]).unwrap_or_default()
            }
        };
        let end = if at_end { valid.len() } else { cut(valid, valid.len()) };
        let text = valid[..end].to_string();
        self.buffer.drain(..end);
        self.offset += end as u64;
        let (place, before) = (self.place.clone(), std::mem::replace(&mut self.before, last_word(&text)));
        Ok(TextChunk { text, before, prompt: 0, is_record: false, place, ends_document: at_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cuts_lie_before_white_space_that_follows_a_word() {
        assert_eq!(cut("one two  three", 14), 7);
        assert_eq!(cut("one two  three", 5), 3);
        assert_eq!(cut("one two  ", 9), 7);
        assert_eq!(cut("oneword", 5), 5);
        assert_eq!(cut("  one", 5), 5);
        assert_eq!(cut("ééé", 3), 2);
        assert_eq!(cut("x = foo();\n    bar();\n", 21), 1);
        assert_eq!(cut("foo();\n    bar();\n", 18), 17);
    }

    #[test]
    fn the_last_word_begins_where_a_chunk_may() {
        for (text, expected) in
            [("one two", " two"), ("one", "one"), ("one  two", "  two"), ("", ""), ("one ", " ")]
        {
            assert_eq!(last_word(text), expected, "{text}");
        }
        assert_eq!(last_word(&"é".repeat(100)), "é".repeat(32));
    }

    proptest! {
        #[test]
        fn pieces_are_the_document(text in "[a-c é\n]{0,60}", limit in 8usize..20) {
            let mut rest = text.as_str();
            while rest.len() > limit {
                let end = cut(rest, limit);
                prop_assert!(end > 0 && end <= limit);
                rest = &rest[end..];
            }
        }
    }
}
