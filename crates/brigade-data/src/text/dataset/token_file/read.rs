//! Reading a split through memory maps.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::Mmap;

use super::{
    BLOCK_BYTES, FORMAT_VERSION, HASH_BYTES, INDEX_HEADER_BYTES, INDEX_MAGIC, TOKENS_HEADER_BYTES,
    TOKENS_MAGIC, bytes_per_token, label_kind, paths,
};
use crate::text::dataset::example::{Label, LabelKind};
use crate::text::dataset::mapped::{MappedFile, read_u64};
use crate::{Error, Result};

/// When a file is opened, tokens of up to this many bytes are checked against their checksums. Those of larger files are checked when
/// they are first read, so that opening one stays fast.
const CHECKED_TOKEN_BYTES: usize = 256 << 20;

/// How many tokens are read at once where all are.
const READ_AT_ONCE: usize = 1 << 16;

/// How many documents show what ends that which is learned.
const DOCUMENTS_WITH_ENDS: usize = 10_000;

/// The tokens of one split, in memory maps that all ranks of a host share.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    tokens: Mmap,
    index: Mmap,
    bytes_per_token: usize,
    len: usize,
    documents: usize,
    masked_ranges: usize,
    labels: Option<LabelKind>,
    vocabulary_size: usize,
    hash: blake3::Hash,
    /// Which blocks of tokens have been compared with their checksums.
    checked: Vec<AtomicBool>,
}

impl TokenFile {
    /// Opens the split `name` in `folder` and checks it: magic, version, sizes, the index's checksum and order, and
    /// up to 256 MiB also the checksums of the tokens.
    ///
    /// # Errors
    /// [`Error::TokenFile`] where anything does not fit; [`Error::Io`].
    pub fn open(folder: &Path, name: &str) -> Result<Self> {
        let file = Self::map(folder, name)?;
        let bytes = file.len * file.bytes_per_token;
        if bytes <= CHECKED_TOKEN_BYTES {
            file.check_blocks(0..bytes).map_err(|message| file.error(message))?;
        }
        Ok(file)
    }

    /// Opens the split and checks all but its tokens.
    pub(super) fn map(folder: &Path, name: &str) -> Result<Self> {
        let (tokens_path, index_path) = paths(folder, name);
        let (tokens, index) = (MappedFile::open(tokens_path)?, MappedFile::open(index_path)?);
        tokens.check(TOKENS_MAGIC, FORMAT_VERSION, TOKENS_HEADER_BYTES)?;
        index.check(INDEX_MAGIC, FORMAT_VERSION, INDEX_HEADER_BYTES)?;

        let width = tokens.u32(12) as usize;
        let (len, vocabulary_size) = (tokens.u64(16), tokens.u32(24) as usize);
        if width != bytes_per_token(vocabulary_size) {
            return Err(tokens.error(format!("{width} bytes a token for a vocabulary of {vocabulary_size}")));
        }
        let token_bytes = u128::from(len) * width as u128;
        tokens.check_size(TOKENS_HEADER_BYTES as u128 + token_bytes)?;
        let labels = label_kind(index.u32(12))
            .ok_or_else(|| index.error(format!("it has labels of kind {}", index.u32(12))))?;
        let (documents, masked_ranges) = (index.u64(16), index.u64(24));
        let label_bytes = if labels.is_some() { u128::from(documents) * 8 } else { 0 };
        let blocks = token_bytes.div_ceil(BLOCK_BYTES as u128);
        index.check_size(
            INDEX_HEADER_BYTES as u128
                + (u128::from(documents) + 1) * 8
                + u128::from(masked_ranges) * 16
                + label_bytes
                + blocks * HASH_BYTES as u128,
        )?;
        let hash = blake3::hash(&index.bytes);
        if hash != tokens.hash(TOKENS_HEADER_BYTES - HASH_BYTES) {
            return Err(index.error("it does not match the checksum in the token file".into()));
        }

        // The sizes were compared with the maps, so they fit in memory's address range.
        let index_path = index.path;
        let file = Self {
            path: tokens.path,
            tokens: tokens.bytes,
            index: index.bytes,
            bytes_per_token: width,
            len: len as usize,
            documents: documents as usize,
            masked_ranges: masked_ranges as usize,
            labels,
            vocabulary_size,
            hash,
            checked: (0..blocks).map(|_| AtomicBool::new(false)).collect(),
        };
        file.check_order().map_err(|message| Error::TokenFile { path: index_path, message })?;
        Ok(file)
    }

    /// The number of tokens, end-of-text tokens included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the split is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of documents.
    pub fn document_count(&self) -> usize {
        self.documents
    }

    /// The size of the vocabulary that the tokens were made with.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// The tokens of document `index`, its end-of-text token included.
    ///
    /// # Panics
    /// Where `index` is not below [`TokenFile::document_count`].
    pub fn document(&self, index: usize) -> Range<usize> {
        assert!(index < self.documents, "document {index} of {}", self.documents);
        self.index_entry(index)..self.index_entry(index + 1)
    }

    /// The document that token `token` is in.
    ///
    /// # Panics
    /// Where `token` is not below [`TokenFile::len`].
    pub fn document_of(&self, token: usize) -> usize {
        assert!(token < self.len, "token {token} of {}", self.len);
        let (mut first, mut end) = (0, self.documents);
        while first + 1 < end {
            let middle = first + (end - first) / 2;
            if self.index_entry(middle) <= token { first = middle } else { end = middle }
        }
        first
    }

    /// Which labels documents have, if any.
    pub fn label_kind(&self) -> Option<LabelKind> {
        self.labels
    }

    /// The label of document `index`, if documents have labels.
    ///
    /// # Panics
    /// Where `index` is not below [`TokenFile::document_count`].
    pub fn label(&self, index: usize) -> Option<Label> {
        assert!(index < self.documents, "document {index} of {}", self.documents);
        self.labels?.label(self.label_bits(index))
    }

    /// The checksum of the index, in which there is that of the tokens: what the split is.
    pub(crate) fn hash(&self) -> blake3::Hash {
        self.hash
    }

    /// Reads the tokens at `range` into `out`, which has its length, and checks those that have not been checked yet.
    ///
    /// # Errors
    /// [`Error::TokenFile`] where they do not match their checksums.
    ///
    /// # Panics
    /// Where the range reaches past [`TokenFile::len`], or `out` has another length.
    pub fn read(&self, range: Range<usize>, out: &mut [u32]) -> Result<()> {
        assert_eq!(range.len(), out.len(), "a buffer for another number of tokens");
        let width = self.bytes_per_token;
        let range = range.start * width..range.end * width;
        let bytes = &self.payload()[range.clone()];
        let advice = "delete its folder, and the tokens are made again";
        self.check_blocks(range).map_err(|message| self.error(format!("{message}; {advice}")))?;
        if width == 2 {
            for (token, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *token = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            }
        } else {
            for (token, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *token = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
        Ok(())
    }

    /// The bytes of all tokens.
    fn payload(&self) -> &[u8] {
        &self.tokens[TOKENS_HEADER_BYTES..]
    }

    /// Checks the blocks that these bytes of the tokens are in, unless that was done before.
    fn check_blocks(&self, bytes: Range<usize>) -> std::result::Result<(), String> {
        let (payload, hashes) = (self.payload(), self.index.len() - self.checked.len() * HASH_BYTES);
        for block in bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES) {
            if self.checked[block].load(Ordering::Relaxed) {
                continue;
            }
            let start = block * BLOCK_BYTES;
            let end = payload.len().min(start + BLOCK_BYTES);
            let expected = &self.index[hashes + block * HASH_BYTES..][..HASH_BYTES];
            if blake3::hash(&payload[start..end]).as_bytes() != expected {
                return Err(format!("the tokens in its bytes {start} to {end} do not match their checksum"));
            }
            self.checked[block].store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn error(&self, message: String) -> Error {
        Error::TokenFile { path: self.path.clone(), message }
    }

    /// The first token that is not below `limit`, if there is one. Where the vocabulary is larger, all tokens are read.
    ///
    /// # Errors
    /// As [`TokenFile::read`].
    pub fn first_from(&self, limit: usize) -> Result<Option<u32>> {
        if self.vocabulary_size <= limit {
            return Ok(None);
        }
        let mut part = vec![0; self.len.min(READ_AT_ONCE)];
        for start in (0..self.len).step_by(READ_AT_ONCE) {
            let range = start..self.len.min(start + READ_AT_ONCE);
            let tokens = &mut part[..range.len()];
            self.read(range, tokens)?;
            if let Some(token) = tokens.iter().find(|token| **token as usize >= limit) {
                return Ok(Some(*token));
            }
        }
        Ok(None)
    }

    /// The masked tokens within `range`, ascending, cut to it.
    pub fn masked_within(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut first = 0;
        let mut end = self.masked_ranges;
        while first < end {
            let middle = first + (end - first) / 2;
            if self.masked_range(middle).end <= range.start { first = middle + 1 } else { end = middle }
        }
        (first..self.masked_ranges)
            .map(|index| self.masked_range(index))
            .take_while(move |masked| masked.start < range.end)
            .map(move |masked| masked.start.max(range.start)..masked.end.min(range.end))
    }

    /// The tokens that what is learned ends with, ascending, in the first documents of which something is not learned.
    ///
    /// # Errors
    /// As [`TokenFile::read`].
    pub fn ends_of_learned(&self) -> Result<Vec<u32>> {
        let mut ends = Vec::new();
        for range in (0..self.documents.min(DOCUMENTS_WITH_ENDS)).map(|index| self.document(index)) {
            let masked: Vec<_> = self.masked_within(range.clone()).collect();
            let Some(last) = masked.last() else { continue };
            let after = (last.end < range.end).then_some(range.end);
            for end in masked.iter().map(|masked| masked.start).filter(|end| *end > range.start).chain(after)
            {
                let mut token = [0];
                self.read(end - 1..end, &mut token)?;
                ends.extend(token);
            }
        }
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }

    fn masked_range(&self, index: usize) -> Range<usize> {
        let entry = self.documents + 1 + 2 * index;
        self.index_entry(entry)..self.index_entry(entry + 1)
    }

    fn label_bits(&self, document: usize) -> u64 {
        let entry = self.documents + 1 + 2 * self.masked_ranges + document;
        read_u64(&self.index, INDEX_HEADER_BYTES + 8 * entry)
    }

    /// The u64 number `entry` after the index's header.
    fn index_entry(&self, entry: usize) -> usize {
        read_u64(&self.index, INDEX_HEADER_BYTES + 8 * entry) as usize
    }

    fn check_order(&self) -> std::result::Result<(), String> {
        let mut last = 0;
        for document in 0..=self.documents {
            let start = self.index_entry(document);
            if start < last || (document == 0 && start != 0) || (document > 0 && start == last) {
                return Err(format!("document {document} starts at {start}, after {last}"));
            }
            last = start;
        }
        if last != self.len {
            return Err(format!("the documents end at {last}, the tokens at {}", self.len));
        }
        let mut last = 0;
        for index in 0..self.masked_ranges {
            let range = self.masked_range(index);
            if range.start < last || range.start >= range.end || range.end > self.len {
                return Err(format!("masked range {index} is {range:?}, after {last}, of {}", self.len));
            }
            last = range.end;
        }
        if let Some(kind) = self.labels {
            let wrong = |document: &usize| kind.label(self.label_bits(*document)).is_none();
            if let Some(document) = (0..self.documents).find(wrong) {
                return Err(format!("the label of document {document} is not {kind}"));
            }
        }
        Ok(())
    }
}
