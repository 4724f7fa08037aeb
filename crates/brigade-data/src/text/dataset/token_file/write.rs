//! Writing a split.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{
    BLOCK_BYTES, FORMAT_VERSION, HASH_BYTES, INDEX_HEADER_BYTES, INDEX_MAGIC, TOKENS_HEADER_BYTES,
    TOKENS_MAGIC, bytes_per_token, label_code, paths,
};
use crate::text::dataset::example::{Example, Label, LabelKind};
use crate::text::dataset::numbers::Numbers;
use crate::{Error, Result};

/// Writes the two files of a split. Until [`TokenWriter::finish`] the files cannot be opened as a split. However many documents there are, they take no memory.
#[derive(Debug)]
pub struct TokenWriter {
    tokens_path: PathBuf,
    index_path: PathBuf,
    file: BufWriter<File>,
    vocabulary_size: usize,
    len: u64,
    starts: Numbers,
    /// Where the document at hand starts.
    last_start: u64,
    /// Start and end of each range but the last one.
    masked: Numbers,
    /// To which masked tokens may still be added.
    last_masked: Option<Range<u64>>,
    masked_tokens: u64,
    /// Of all documents, or of none.
    labels: Numbers,
    /// Of which kind these are.
    label_kind: Option<LabelKind>,
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
        let numbers = || Numbers::create(&index_path);
        let mut writer = Self {
            file: BufWriter::with_capacity(1 << 18, file),
            vocabulary_size,
            len: 0,
            starts: numbers()?,
            last_start: 0,
            masked: numbers()?,
            last_masked: None,
            masked_tokens: 0,
            labels: numbers()?,
            label_kind: None,
            tokens_path,
            index_path,
        };
        writer.write(&[0; TOKENS_HEADER_BYTES])?;
        writer.starts.push(0)?;
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
            self.masked_tokens += added.end - added.start;
            match &mut self.last_masked {
                Some(last) if last.end == added.start => last.end = added.end,
                last => {
                    if let Some(ended) = last.replace(added) {
                        self.masked.push(ended.start)?;
                        self.masked.push(ended.end)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the current document; a document without tokens is skipped.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn end_document(&mut self) -> Result<()> {
        if self.len > self.last_start {
            self.starts.push(self.len)?;
            self.last_start = self.len;
        }
        Ok(())
    }

    /// Adds an example as a document of its own; one without tokens is skipped.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`Error::TokenFile`] where not every token is said to be learned or not, or not every document has a
    /// label of the same kind, or a label is not finite.
    pub fn push_example(&mut self, example: &Example) -> Result<()> {
        let Example { ids, learned, label, .. } = example;
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
        self.push_label(*label)?;
        self.end_document()
    }

    /// Adds the label of the document at hand, if it has one.
    fn push_label(&mut self, label: Option<Label>) -> Result<()> {
        let Some(label) = label else { return Ok(()) };
        self.label_kind = Some(label.kind());
        self.labels.push(label.to_bits())
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
        let before = self.label_kind;
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
        (self.starts.len() - 1) as usize
    }

    /// The number of tokens so far.
    pub fn token_count(&self) -> u64 {
        self.len
    }

    /// The number of masked tokens so far.
    pub fn masked_count(&self) -> u64 {
        self.masked_tokens
    }

    /// Completes both files and flushes them to the disk.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::DiskFull`]; [`Error::TokenFile`] where some documents have a label and others none.
    pub fn finish(mut self) -> Result<()> {
        self.end_document()?;
        if self.label_kind.is_some() && self.labels.len() != self.document_count() as u64 {
            return Err(self.error(format!(
                "{} labels for {} documents",
                self.labels.len(),
                self.document_count()
            )));
        }
        if let Some(last) = self.last_masked.take() {
            self.masked.push(last.start)?;
            self.masked.push(last.end)?;
        }
        self.file.flush().map_err(|source| Error::io("write", &self.tokens_path, source))?;
        let hashes = self.hashes_of_blocks()?;
        let hash =
            self.write_index(&hashes).map_err(|source| Error::io("write", &self.index_path, source))?;

        let mut header = Vec::with_capacity(TOKENS_HEADER_BYTES);
        header.extend_from_slice(TOKENS_MAGIC);
        header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        header.extend_from_slice(&(bytes_per_token(self.vocabulary_size) as u32).to_le_bytes());
        header.extend_from_slice(&self.len.to_le_bytes());
        header.extend_from_slice(&(self.vocabulary_size as u32).to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(hash.as_bytes());
        let file = self.file.get_ref();
        file.write_all_at(&header, 0)
            .and_then(|()| file.sync_all())
            .map_err(|source| Error::io("write", &self.tokens_path, source))
    }

    fn index_header(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(INDEX_HEADER_BYTES);
        header.extend_from_slice(INDEX_MAGIC);
        header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        header.extend_from_slice(&label_code(self.label_kind).to_le_bytes());
        header.extend_from_slice(&(self.document_count() as u64).to_le_bytes());
        header.extend_from_slice(&(self.masked.len() / 2).to_le_bytes());
        header
    }

    /// Writes the index file, with these hashes at its end, and returns its own.
    fn write_index(&mut self, hashes: &[u8]) -> io::Result<blake3::Hash> {
        let header = self.index_header();
        let (mut file, mut hasher) = (File::create(&self.index_path)?, blake3::Hasher::new());
        let mut write = |bytes: &[u8]| {
            hasher.update(bytes);
            file.write_all(bytes)
        };
        write(&header)?;
        for numbers in [&mut self.starts, &mut self.masked, &mut self.labels] {
            numbers.read_all(&mut write)?;
        }
        write(hashes)?;
        file.sync_all()?;
        Ok(hasher.finalize())
    }

    /// The checksums of the tokens' blocks, one after the other. They are read back, so that the checksums are of what was written.
    fn hashes_of_blocks(&self) -> Result<Vec<u8>> {
        let bytes = self.len * bytes_per_token(self.vocabulary_size) as u64;
        let mut hashes = Vec::with_capacity(bytes.div_ceil(BLOCK_BYTES as u64) as usize * HASH_BYTES);
        let mut block = vec![0; BLOCK_BYTES];
        for start in (0..bytes).step_by(BLOCK_BYTES) {
            let block = &mut block[..(bytes - start).min(BLOCK_BYTES as u64) as usize];
            let read = self.file.get_ref().read_exact_at(block, TOKENS_HEADER_BYTES as u64 + start);
            read.map_err(|source| Error::io("read back", &self.tokens_path, source))?;
            hashes.extend_from_slice(blake3::hash(block).as_bytes());
        }
        Ok(hashes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| Error::io("write", &self.tokens_path, source))
    }
}
