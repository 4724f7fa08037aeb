//! Reads byte ranges of files by their checksummed chunks.

use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::format::manifest::{CHUNK_BYTES, FileMetadata};
use crate::storage::{Storage, StorageReader};

/// How many files are kept open, each with the chunk that was last read in part.
const KEPT: usize = 128;

/// Whole chunks are read directly into the caller's buffer, at most this many at once.
const RUN: usize = 16;

/// Open files with their last chunks, the most recently used last.
#[derive(Default)]
pub(crate) struct ChunkReader {
    open: Vec<OpenFile>,
}

struct OpenFile {
    name: String,
    reader: Box<dyn StorageReader>,
    /// Number and bytes of a verified chunk.
    last: Option<(u64, Vec<u8>)>,
}

impl fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkReader").field("open", &self.open.len()).finish()
    }
}

impl ChunkReader {
    /// Fills `into` from byte `offset` of a file on; the manifest has been checked, so that the file has these bytes.
    pub fn read(
        &mut self,
        storage: &dyn Storage,
        folder: &str,
        file: &FileMetadata,
        offset: u64,
        mut into: &mut [u8],
    ) -> Result<()> {
        let open = self.open(storage, folder, file)?;
        let mut at = offset;
        while !into.is_empty() {
            let chunk = at / CHUNK_BYTES as u64;
            let kept = open.last.as_ref().is_some_and(|(last, _)| *last == chunk);
            let whole = if kept { 0 } else { whole_chunks(file, at, into.len()) };
            let (part, rest) = if whole > 0 {
                let (part, rest) = into.split_at_mut(whole);
                open.reader.read_at(at, part)?;
                for (number, bytes) in (chunk..).zip(part.chunks(CHUNK_BYTES)) {
                    verify(folder, file, number, bytes)?;
                }
                (part, rest)
            } else {
                let bytes = open.chunk(folder, file, chunk)?;
                let bytes = &bytes[(at % CHUNK_BYTES as u64) as usize..];
                let (part, rest) = into.split_at_mut(bytes.len().min(into.len()));
                part.copy_from_slice(&bytes[..part.len()]);
                (part, rest)
            };
            at += part.len() as u64;
            into = rest;
        }
        Ok(())
    }

    fn open(&mut self, storage: &dyn Storage, folder: &str, file: &FileMetadata) -> Result<&mut OpenFile> {
        let open = match self.open.iter().position(|open| open.name == file.name) {
            Some(index) => self.open.remove(index),
            None => {
                let name = format!("{folder}/{}", file.name);
                let reader = storage
                    .open(folder, &file.name)?
                    .ok_or_else(|| Error::MissingFile { file: name.clone() })?;
                if reader.size() != file.bytes {
                    return Err(Error::SizeMismatch {
                        file: name,
                        given: reader.size(),
                        expected: file.bytes,
                    });
                }
                if self.open.len() == KEPT {
                    self.open.remove(0);
                }
                OpenFile { name: file.name.clone(), reader, last: None }
            }
        };
        self.open.push(open);
        let last = self.open.len() - 1;
        Ok(&mut self.open[last])
    }
}

impl OpenFile {
    /// A verified chunk: the cached one, or else it is read and cached.
    fn chunk(&mut self, folder: &str, file: &FileMetadata, chunk: u64) -> Result<&[u8]> {
        let (number, mut bytes) = self.last.take().unwrap_or_default();
        if number != chunk || bytes.is_empty() {
            let Range { start, end } = span(file, chunk);
            bytes.resize((end - start) as usize, 0);
            self.reader.read_at(start, &mut bytes)?;
            verify(folder, file, chunk, &bytes)?;
        }
        let (_, bytes) = self.last.insert((chunk, bytes));
        Ok(bytes)
    }
}

/// The bytes of a chunk in its file.
fn span(file: &FileMetadata, chunk: u64) -> Range<u64> {
    let start = chunk * CHUNK_BYTES as u64;
    start..file.bytes.min(start.saturating_add(CHUNK_BYTES as u64))
}

/// How many of the `length` bytes from `at` on are whole chunks that begin at `at`.
fn whole_chunks(file: &FileMetadata, at: u64, length: usize) -> usize {
    if !at.is_multiple_of(CHUNK_BYTES as u64) {
        return 0;
    }
    let to_end = at + length as u64 == file.bytes;
    let whole = if to_end { length } else { length - length % CHUNK_BYTES };
    whole.min(RUN * CHUNK_BYTES)
}

/// Compares a chunk with its checksum.
pub(crate) fn verify(folder: &str, file: &FileMetadata, chunk: u64, bytes: &[u8]) -> Result<()> {
    let given = crc32c::crc32c(bytes);
    match file.chunk_crc(chunk) {
        Some(expected) if expected == given => Ok(()),
        expected => Err(Error::ChecksumMismatch {
            file: format!("{folder}/{}", file.name),
            chunk,
            offset: chunk.saturating_mul(CHUNK_BYTES as u64),
            given,
            expected: expected.unwrap_or_default(),
        }),
    }
}
