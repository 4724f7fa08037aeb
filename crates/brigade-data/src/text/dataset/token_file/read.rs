//! Reading a split through memory maps.

use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use super::{
    FORMAT_VERSION, HASH_BYTES, HEADER_BYTES, INDEX_MAGIC, TOKENS_MAGIC, bytes_per_token, label_kind, paths,
};
use crate::text::dataset::example::{Label, LabelKind};
use crate::text::dataset::mapped::{MappedFile, read_u64};
use crate::{Error, Result};

/// When a file is opened, tokens of up to this many bytes are checked against their checksum. For larger files only size and
/// index are checked, so that opening one stays fast.
const CHECKED_TOKEN_BYTES: usize = 256 << 20;

/// The tokens of one split, in memory maps that all ranks of a host share.
#[derive(Debug)]
pub struct TokenFile {
    tokens: Mmap,
    index: Mmap,
    bytes_per_token: usize,
    len: usize,
    documents: usize,
    masked_ranges: usize,
    labels: Option<LabelKind>,
    vocabulary_size: usize,
    hash: blake3::Hash,
}

impl TokenFile {
    /// Opens the split `name` in `folder` and checks it: magic, version, sizes, the index's checksum and order, and
    /// up to 256 MiB also the checksum of the tokens.
    ///
    /// # Errors
    /// [`Error::TokenFile`] where anything does not fit; [`Error::Io`].
    pub fn open(folder: &Path, name: &str) -> Result<Self> {
        let (tokens_path, index_path) = paths(folder, name);
        let (tokens, index) = (MappedFile::open(tokens_path)?, MappedFile::open(index_path)?);
        tokens.check(TOKENS_MAGIC, FORMAT_VERSION, HEADER_BYTES)?;
        index.check(INDEX_MAGIC, FORMAT_VERSION, HEADER_BYTES)?;

        let width = tokens.u32(12) as usize;
        let (len, vocabulary_size) = (tokens.u64(16), tokens.u32(24) as usize);
        if width != bytes_per_token(vocabulary_size) {
            return Err(tokens.error(format!("{width} bytes a token for a vocabulary of {vocabulary_size}")));
        }
        let header = HEADER_BYTES as u128;
        tokens.check_size(header + u128::from(len) * width as u128)?;
        let labels = label_kind(index.u32(12))
            .ok_or_else(|| index.error(format!("it has labels of kind {}", index.u32(12))))?;
        let (documents, masked_ranges) = (index.u64(16), index.u64(24));
        let label_bytes = if labels.is_some() { u128::from(documents) * 8 } else { 0 };
        index.check_size(
            header + (u128::from(documents) + 1) * 8 + u128::from(masked_ranges) * 16 + label_bytes,
        )?;
        let (hash_at, hash) = (HEADER_BYTES - HASH_BYTES, blake3::hash(&index.bytes));
        if hash != tokens.hash(hash_at) {
            return Err(index.error("it does not match the checksum in the token file".into()));
        }
        let payload = &tokens.bytes[HEADER_BYTES..];
        if payload.len() <= CHECKED_TOKEN_BYTES && blake3::hash(payload) != index.hash(hash_at) {
            return Err(tokens.error("the tokens do not match their checksum".into()));
        }

        // The sizes were compared with the maps, so they fit in memory's address range.
        let index_path = index.path;
        let file = Self {
            tokens: tokens.bytes,
            index: index.bytes,
            bytes_per_token: width,
            len: len as usize,
            documents: documents as usize,
            masked_ranges: masked_ranges as usize,
            labels,
            vocabulary_size,
            hash,
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

    /// Reads the tokens at `range` into `out`, which has its length.
    ///
    /// # Panics
    /// Where the range reaches past [`TokenFile::len`], or `out` has another length.
    pub fn read(&self, range: Range<usize>, out: &mut [u32]) {
        assert_eq!(range.len(), out.len(), "a buffer for another number of tokens");
        let width = self.bytes_per_token;
        let bytes = &self.tokens[HEADER_BYTES + range.start * width..HEADER_BYTES + range.end * width];
        if width == 2 {
            for (token, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *token = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            }
        } else {
            for (token, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *token = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
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

    fn masked_range(&self, index: usize) -> Range<usize> {
        let entry = self.documents + 1 + 2 * index;
        self.index_entry(entry)..self.index_entry(entry + 1)
    }

    fn label_bits(&self, document: usize) -> u64 {
        let entry = self.documents + 1 + 2 * self.masked_ranges + document;
        read_u64(&self.index, HEADER_BYTES + 8 * entry)
    }

    /// The u64 number `entry` after the index's header.
    fn index_entry(&self, entry: usize) -> usize {
        read_u64(&self.index, HEADER_BYTES + 8 * entry) as usize
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
