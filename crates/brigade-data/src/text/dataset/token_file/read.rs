//! Reading a split through memory maps.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::{FORMAT_VERSION, HASH_BYTES, HEADER_BYTES, INDEX_MAGIC, TOKENS_MAGIC, bytes_per_token, paths};
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
    vocabulary_size: usize,
}

impl TokenFile {
    /// Opens the split `name` in `folder` and checks it: magic, version, sizes, the index's checksum and order, and
    /// up to 256 MiB also the checksum of the tokens.
    ///
    /// # Errors
    /// [`Error::TokenFile`] where anything does not fit; [`Error::Io`].
    pub fn open(folder: &Path, name: &str) -> Result<Self> {
        let (tokens_path, index_path) = paths(folder, name);
        let tokens = MappedFile { bytes: map(&tokens_path)?, path: tokens_path };
        let index = MappedFile { bytes: map(&index_path)?, path: index_path };
        tokens.check(TOKENS_MAGIC)?;
        index.check(INDEX_MAGIC)?;

        let width = tokens.u32(12) as usize;
        let (len, vocabulary_size) = (tokens.u64(16), tokens.u32(24) as usize);
        if width != bytes_per_token(vocabulary_size) {
            return Err(tokens.error(format!("{width} bytes a token for a vocabulary of {vocabulary_size}")));
        }
        tokens.check_size(u128::from(len) * width as u128)?;
        let (documents, masked_ranges) = (index.u64(16), index.u64(24));
        index.check_size((u128::from(documents) + 1) * 8 + u128::from(masked_ranges) * 16)?;
        if blake3::hash(&index.bytes) != tokens.hash() {
            return Err(index.error("it does not match the checksum in the token file".into()));
        }
        let payload = &tokens.bytes[HEADER_BYTES..];
        if payload.len() <= CHECKED_TOKEN_BYTES && blake3::hash(payload) != index.hash() {
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
            vocabulary_size,
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
        Ok(())
    }
}

/// One of the two files, not checked yet.
struct MappedFile {
    path: PathBuf,
    bytes: Mmap,
}

impl MappedFile {
    fn check(&self, magic: &[u8; 8]) -> Result<()> {
        if self.bytes.len() < HEADER_BYTES {
            return Err(self.error(format!("{} bytes are too few", self.bytes.len())));
        }
        if &self.bytes[..8] != magic {
            return Err(self.error("it does not start with the magic bytes of its kind".into()));
        }
        match self.u32(8) {
            FORMAT_VERSION => Ok(()),
            version => {
                Err(self.error(format!("it has version {version}, this program reads {FORMAT_VERSION}")))
            }
        }
    }

    fn check_size(&self, payload: u128) -> Result<()> {
        let size = payload + HEADER_BYTES as u128;
        if size == self.bytes.len() as u128 {
            return Ok(());
        }
        Err(self.error(format!("it has {} bytes, its header says {size}", self.bytes.len())))
    }

    fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(array(&self.bytes, offset))
    }

    fn u64(&self, offset: usize) -> u64 {
        read_u64(&self.bytes, offset)
    }

    fn hash(&self) -> blake3::Hash {
        blake3::Hash::from_bytes(array::<HASH_BYTES>(&self.bytes, HEADER_BYTES - HASH_BYTES))
    }

    fn error(&self, message: String) -> Error {
        Error::TokenFile { path: self.path.clone(), message }
    }
}

fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array(bytes, offset))
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[offset + index])
}

fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(|source| Error::io("open", path, source))?;
    // SAFETY: cache files are written under another name, renamed when complete, and never changed in place after that; anyone who
    // else writes into the cache's folder must keep to that, too. One that is cut short under a run ends it by SIGBUS: memory
    // that there is not is never read.
    unsafe { Mmap::map(&file) }.map_err(|source| Error::io("map", path, source))
}
