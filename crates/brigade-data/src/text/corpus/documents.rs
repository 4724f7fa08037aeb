//! Reading the documents of a file as a stream of chunks.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::{Format, SourceFile};
use super::parquet;
use crate::{Error, Result};

/// Documents are read in chunks of about this many bytes, so that memory is bounded and one large document is tokenized by
/// all cores.
const CHUNK_BYTES: usize = 128 << 10;

/// A part of a document.
///
/// Chunks end before white space that follows something else. No word in GPT-2's splitting spans such a place, so byte-level
/// tokenizers give the same tokens as for the whole document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextChunk {
    pub(crate) text: String,
    /// Whether it belongs to the prompt.
    pub(crate) masked: bool,
    /// Whether it is the last of its document.
    pub(crate) ends_document: bool,
    /// How many bytes of the file it stands for, for the progress bar.
    pub(crate) source_bytes: u64,
}

/// A stream of chunks.
pub(crate) type TextChunks = Box<dyn Iterator<Item = Result<TextChunk>>>;

/// The documents of `file`, in order.
pub(crate) fn chunks(file: &SourceFile) -> Result<TextChunks> {
    let path = file.path.clone();
    let opened = File::open(&path).map_err(|source| Error::io("open", &path, source))?;
    Ok(match file.format {
        Format::Text => {
            Box::new(TextFileChunks { path, file: opened, buffer: Vec::new(), offset: 0, done: false })
        }
        Format::Jsonl => {
            let lines = Lines { path, reader: BufReader::new(opened), line: 0, offset: 0 };
            Box::new(lines.flat_map(of_document))
        }
        Format::Parquet => Box::new(parquet::texts(path, opened)?.flat_map(of_document)),
    })
}

/// One document in memory.
pub(super) struct Document {
    pub(super) prompt: Option<String>,
    pub(super) text: String,
    pub(super) source_bytes: u64,
}

/// Cuts a document into chunks; errors are passed on.
fn of_document(document: Result<Document>) -> Vec<Result<TextChunk>> {
    let document = match document {
        Ok(document) => document,
        Err(error) => return vec![Err(error)],
    };
    let mut chunks = Vec::new();
    for (text, masked) in
        document.prompt.map(|prompt| (prompt, true)).into_iter().chain([(document.text, false)])
    {
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = if rest.len() <= CHUNK_BYTES { rest.len() } else { cut(rest, CHUNK_BYTES) };
            let (text, left) = rest.split_at(end);
            chunks.push(TextChunk { text: text.into(), masked, ends_document: false, source_bytes: 0 });
            rest = left;
        }
    }
    if chunks.is_empty() {
        chunks.push(TextChunk { text: String::new(), masked: false, ends_document: true, source_bytes: 0 });
    }
    if let Some(last) = chunks.last_mut() {
        last.ends_document = true;
        last.source_bytes = document.source_bytes;
    }
    chunks.into_iter().map(Ok).collect()
}

/// The last place at or below `limit` before white space that follows something else; if there is none, the last place between
/// two characters.
fn cut(text: &str, limit: usize) -> usize {
    let limit = text.floor_char_boundary(limit);
    let mut after = None;
    for (start, character) in text[..limit].char_indices().rev() {
        if !character.is_whitespace() && after.is_some_and(|(_, space)| space) {
            return after.map_or(limit, |(start, _)| start);
        }
        after = Some((start, character.is_whitespace()));
    }
    limit
}

/// A text file as one document.
struct TextFileChunks {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
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
        let read = self.file.by_ref().take(wanted).read_to_end(&mut self.buffer);
        let at_end = (read.map_err(|source| Error::io("read", &self.path, source))? as u64) < wanted;
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
        Ok(TextChunk { text, masked: false, ends_document: at_end, source_bytes: end as u64 })
    }
}

/// The lines of a JSONL file; blank ones are skipped.
struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    line: u64,
    offset: u64,
}

#[derive(Deserialize)]
struct Line {
    text: String,
    prompt: Option<String>,
}

impl Iterator for Lines {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut bytes = Vec::new();
            match self.reader.read_until(b'\n', &mut bytes) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(source) => return Some(Err(Error::io("read", &self.path, source))),
            }
            self.line += 1;
            let start = self.offset;
            self.offset += bytes.len() as u64;
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                return Some(parse_line(&self.path, self.line, start, &bytes));
            }
        }
    }
}

fn parse_line(path: &Path, line: u64, offset: u64, bytes: &[u8]) -> Result<Document> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Error::NotUtf8 { path: path.into(), offset: offset + error.valid_up_to() as u64 })?;
    let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text };
    // Serde would also take an array of a struct's fields.
    if let Some(found) = other_than_object(text) {
        let message = format!(
            "it is {found}; a line is an object like {{\"text\": \"…\"}}, with or without \"prompt\""
        );
        return Err(Error::Jsonl { path: path.into(), line, message });
    }
    let parsed: Line = serde_json::from_str(text).map_err(|error| {
        // Serde counts lines within this one.
        let message = error.to_string().replace(&format!(" at line {}", error.line()), " at");
        Error::Jsonl { path: path.into(), line, message }
    })?;
    Ok(Document { prompt: parsed.prompt, text: parsed.text, source_bytes: bytes.len() as u64 })
}

/// What a line of JSON that is not an object seems to be, judging by its beginning.
fn other_than_object(text: &str) -> Option<&'static str> {
    match text.trim_start().bytes().next()? {
        b'[' => Some("an array"),
        b'"' => Some("a string"),
        b'0'..=b'9' | b'-' => Some("a number"),
        b't' | b'f' => Some("true or false"),
        b'n' => Some("null"),
        _ => None,
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
