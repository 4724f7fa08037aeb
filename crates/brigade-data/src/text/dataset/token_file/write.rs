//! Writing a split.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{FORMAT_VERSION, HEADER_BYTES, INDEX_MAGIC, TOKENS_MAGIC, bytes_per_token, label_code, paths};
use crate::text::dataset::example::{Example, Label};
use crate::{Error, Result};

/// Writes the two files of a split. Until [`TokenWriter::finish`] the files cannot be opened as a split.
#[derive(Debug)]
pub struct TokenWriter {
    tokens_path: PathBuf,
    index_path: PathBuf,
    file: BufWriter<File>,
    vocabulary_size: usize,
    len: u64,
    starts: Vec<u64>,
    masked: Vec<Range<u64>>,
    /// Of all documents, or of none.
    labels: Vec<Label>,
}

/// Tokens taken back from the end of a split, with the ranges among them that are masked, and the label of their document.
pub(crate) struct Tail {
    pub(crate) tokens: Vec<u32>,
    pub(crate) masked: Vec<Range<usize>>,
    pub(crate) label: Option<Label>,
}

impl TokenWriter {
    /// Starts the split `name` in `folder`, for token ids below `vocabulary_size`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn create(folder: &Path, name: &str, vocabulary_size: usize) -> Result<Self> {
        let (tokens_path, index_path) = paths(folder, name);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&tokens_path);
        let file = file.map_err(|source| Error::io("create", &tokens_path, source))?;
        let mut writer = Self {
            file: BufWriter::with_capacity(1 << 18, file),
            tokens_path,
            index_path,
            vocabulary_size,
            len: 0,
            starts: vec![0],
            masked: Vec::new(),
            labels: Vec::new(),
        };
        writer.write(&[0; HEADER_BYTES])?;
        Ok(writer)
    }

    /// Adds tokens to the current document; `masked` ones are not targets.
    ///
    /// # Errors
    /// [`Error::TokenFile`] where an id is outside the vocabulary; [`Error::Io`], [`Error::DiskFull`].
    pub fn push(&mut self, tokens: &[u32], masked: bool) -> Result<()> {
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.vocabulary_size) {
            return Err(
                self.error(format!("token {token} is outside the vocabulary of {}", self.vocabulary_size))
            );
        }
        let bytes: Vec<u8> = match bytes_per_token(self.vocabulary_size) {
            2 => tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect(),
            _ => tokens.iter().flat_map(|&token| token.to_le_bytes()).collect(),
        };
        self.write(&bytes)?;
        let added = self.len..self.len + tokens.len() as u64;
        self.len = added.end;
        if masked && !added.is_empty() {
            match self.masked.last_mut() {
                Some(last) if last.end == added.start => last.end = added.end,
                _ => self.masked.push(added),
            }
        }
        Ok(())
    }

    /// Ends the current document; a document without tokens is skipped.
    pub fn end_document(&mut self) {
        if self.len > self.last_start() {
            self.starts.push(self.len);
        }
    }

    /// Adds an example as a document of its own; one without tokens is skipped.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`Error::TokenFile`] where not every token is said to be learned or not, or not every document has a
    /// label of the same kind, or a label is not finite.
    pub fn push_example(&mut self, example: &Example) -> Result<()> {
        let Example { ids, learned, label } = example;
        if ids.is_empty() {
            return Ok(());
        }
        if ids.len() != learned.len() {
            return Err(self.error(format!(
                "{} tokens, of which {} may be learned",
                ids.len(),
                learned.len()
            )));
        }
        self.check_label(*label)?;
        let mut done = 0;
        for run in learned.chunk_by(|a, b| a == b) {
            self.push(&ids[done..done + run.len()], !run[0])?;
            done += run.len();
        }
        self.labels.extend(*label);
        self.end_document();
        Ok(())
    }

    fn check_label(&self, label: Option<Label>) -> Result<()> {
        if let Some(label) = label.filter(|label| label.kind().label(label.to_bits()).is_none()) {
            return Err(self.error(format!("the label {label:?} is not finite")));
        }
        let in_words = |kind| match kind {
            None => "no label".to_owned(),
            Some(kind) => format!("{kind} as its label"),
        };
        let kind = label.map(Label::kind);
        let before = self.labels.last().map(|label| label.kind());
        if self.document_count() > 0 && kind != before {
            let (before, kind) = (in_words(before), in_words(kind));
            return Err(self.error(format!("an example has {kind}, but the one before it has {before}")));
        }
        Ok(())
    }

    fn error(&self, message: String) -> Error {
        Error::TokenFile { path: self.tokens_path.clone(), message }
    }

    /// The number of documents that have ended.
    pub fn document_count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The number of tokens so far.
    pub fn token_count(&self) -> u64 {
        self.len
    }

    /// The number of masked tokens so far.
    pub fn masked_count(&self) -> u64 {
        self.masked.iter().map(|range| range.end - range.start).sum()
    }

    /// Takes back all tokens from `start` on. Documents that ended after it are open again.
    pub(crate) fn take_tail(&mut self, start: u64) -> Result<Tail> {
        self.file.flush().map_err(|source| Error::io("write", &self.tokens_path, source))?;
        let width = bytes_per_token(self.vocabulary_size);
        let offset = HEADER_BYTES as u64 + start * width as u64;
        let mut bytes = vec![0; (self.len - start) as usize * width];
        let file = self.file.get_mut();
        file.read_exact_at(&mut bytes, offset)
            .and_then(|()| file.set_len(offset))
            .and_then(|()| file.seek(SeekFrom::Start(offset)))
            .map_err(|source| Error::io("take tokens back from", &self.tokens_path, source))?;
        let tokens = bytes.chunks_exact(width).map(decode_token).collect();
        let taken = self.masked.iter().filter(|range| range.end > start);
        let masked = taken
            .map(|range| (range.start.max(start) - start) as usize..(range.end - start) as usize)
            .collect();
        self.masked.retain_mut(|range| {
            range.end = range.end.min(start);
            range.start < range.end
        });
        self.starts.retain(|&document| document <= start);
        let label = self.labels.get(self.document_count()).copied();
        self.labels.truncate(self.document_count());
        self.len = start;
        Ok(Tail { tokens, masked, label })
    }

    /// Adds tokens that were taken from another split, or from this one.
    pub(crate) fn push_tail(&mut self, tail: &Tail) -> Result<()> {
        let mut done = 0;
        for range in &tail.masked {
            self.push(&tail.tokens[done..range.start], false)?;
            self.push(&tail.tokens[range.clone()], true)?;
            done = range.end;
        }
        self.labels.extend(tail.label);
        self.push(&tail.tokens[done..], false)
    }

    /// Completes both files and flushes them to the disk.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`]; [`Error::TokenFile`] where some documents have a label and others none.
    pub fn finish(mut self) -> Result<()> {
        self.end_document();
        if !self.labels.is_empty() && self.labels.len() != self.document_count() {
            return Err(self.error(format!(
                "{} labels for {} documents",
                self.labels.len(),
                self.document_count()
            )));
        }
        self.file.flush().map_err(|source| Error::io("write", &self.tokens_path, source))?;
        let index = self.index_bytes()?;
        let write_index = || {
            let mut file = File::create(&self.index_path)?;
            file.write_all(&index)?;
            file.sync_all()
        };
        write_index().map_err(|source| Error::io("write", &self.index_path, source))?;

        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(TOKENS_MAGIC);
        header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        header.extend_from_slice(&(bytes_per_token(self.vocabulary_size) as u32).to_le_bytes());
        header.extend_from_slice(&self.len.to_le_bytes());
        header.extend_from_slice(&(self.vocabulary_size as u32).to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(blake3::hash(&index).as_bytes());
        let file = self.file.get_ref();
        file.write_all_at(&header, 0)
            .and_then(|()| file.sync_all())
            .map_err(|source| Error::io("write", &self.tokens_path, source))
    }

    fn index_bytes(&self) -> Result<Vec<u8>> {
        let mut index = Vec::with_capacity(
            HEADER_BYTES + 8 * (self.starts.len() + 2 * self.masked.len() + self.labels.len()),
        );
        index.extend_from_slice(INDEX_MAGIC);
        index.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        index.extend_from_slice(&label_code(self.labels.first().map(|label| label.kind())).to_le_bytes());
        index.extend_from_slice(&(self.document_count() as u64).to_le_bytes());
        index.extend_from_slice(&(self.masked.len() as u64).to_le_bytes());
        index.extend_from_slice(self.hash_of_tokens()?.as_bytes());
        for start in &self.starts {
            index.extend_from_slice(&start.to_le_bytes());
        }
        for range in &self.masked {
            index.extend_from_slice(&range.start.to_le_bytes());
            index.extend_from_slice(&range.end.to_le_bytes());
        }
        for label in &self.labels {
            index.extend_from_slice(&label.to_bits().to_le_bytes());
        }
        Ok(index)
    }

    /// Read back from the file, so that the checksum is that of what was written.
    fn hash_of_tokens(&self) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 18];
        let mut offset = HEADER_BYTES as u64;
        loop {
            let read = self.file.get_ref().read_at(&mut buffer, offset);
            match read.map_err(|source| Error::io("read back", &self.tokens_path, source))? {
                0 => return Ok(hasher.finalize()),
                count => {
                    hasher.update(&buffer[..count]);
                    offset += count as u64;
                }
            }
        }
    }

    fn last_start(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| Error::io("write", &self.tokens_path, source))
    }
}

/// The id in 2 or 4 bytes.
fn decode_token(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |id, &byte| id << 8 | u32::from(byte))
}
