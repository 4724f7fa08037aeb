//! Reads byte ranges of files by their checksummed chunks.

use std::fmt;
use std::ops::Range;

use crate::manifest::{CHUNK, FileEntry};
use crate::storage::{Source, Storage};
use crate::{Error, Result};

/// Files that are kept open, each with the chunk that was last read in part.
const KEPT: usize = 128;

/// Whole chunks are read straight to where they are wanted, at most this many at once.
const RUN: usize = 16;

/// Open files with their last chunks, the most recently used last.
#[derive(Default)]
pub(crate) struct Chunks {
    open: Vec<Open>,
}

struct Open {
    name: String,
    source: Box<dyn Source>,
    /// Number and bytes of a verified chunk.
    last: Option<(u64, Vec<u8>)>,
}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks").field("open", &self.open.len()).finish()
    }
}

impl Chunks {
    /// Fills `into` from byte `offset` of a file on; the manifest has been checked, so that the file has these bytes.
    pub fn read(
        &mut self,
        storage: &dyn Storage,
        folder: &str,
        file: &FileEntry,
        offset: u64,
        mut into: &mut [u8],
    ) -> Result<()> {
        let open = self.open(storage, folder, file)?;
        let mut at = offset;
        while !into.is_empty() {
            let chunk = at / CHUNK as u64;
            let kept = open.last.as_ref().is_some_and(|(last, _)| *last == chunk);
            let whole = if kept { 0 } else { whole_chunks(file, at, into.len()) };
            let (part, rest) = if whole > 0 {
                let (part, rest) = into.split_at_mut(whole);
                open.source.read_at(at, part)?;
                for (number, bytes) in (chunk..).zip(part.chunks(CHUNK)) {
                    verify(folder, file, number, bytes)?;
                }
                (part, rest)
            } else {
                let bytes = open.chunk(folder, file, chunk)?;
                let bytes = &bytes[(at % CHUNK as u64) as usize..];
                let (part, rest) = into.split_at_mut(bytes.len().min(into.len()));
                part.copy_from_slice(&bytes[..part.len()]);
                (part, rest)
            };
            at += part.len() as u64;
            into = rest;
        }
        Ok(())
    }

    fn open(&mut self, storage: &dyn Storage, folder: &str, file: &FileEntry) -> Result<&mut Open> {
        let open = match self.open.iter().position(|open| open.name == file.name) {
            Some(index) => self.open.remove(index),
            None => {
                let name = format!("{folder}/{}", file.name);
                let source =
                    storage.open(folder, &file.name)?.ok_or_else(|| Error::Missing { file: name.clone() })?;
                if source.size() != file.bytes {
                    return Err(Error::Size { file: name, given: source.size(), expected: file.bytes });
                }
                if self.open.len() == KEPT {
                    self.open.remove(0);
                }
                Open { name: file.name.clone(), source, last: None }
            }
        };
        self.open.push(open);
        let last = self.open.len() - 1;
        Ok(&mut self.open[last])
    }
}

impl Open {
    /// A verified chunk: the kept one, or it is read and kept.
    fn chunk(&mut self, folder: &str, file: &FileEntry, chunk: u64) -> Result<&[u8]> {
        let (number, mut bytes) = self.last.take().unwrap_or_default();
        if number != chunk || bytes.is_empty() {
            let Range { start, end } = span(file, chunk);
            bytes.resize((end - start) as usize, 0);
            self.source.read_at(start, &mut bytes)?;
            verify(folder, file, chunk, &bytes)?;
        }
        let (_, bytes) = self.last.insert((chunk, bytes));
        Ok(bytes)
    }
}

/// The bytes of a chunk in its file.
fn span(file: &FileEntry, chunk: u64) -> Range<u64> {
    let start = chunk * CHUNK as u64;
    start..file.bytes.min(start.saturating_add(CHUNK as u64))
}

/// How many of the `length` bytes from `at` on are whole chunks that begin at `at`.
fn whole_chunks(file: &FileEntry, at: u64, length: usize) -> usize {
    if !at.is_multiple_of(CHUNK as u64) {
        return 0;
    }
    let to_end = at + length as u64 == file.bytes;
    let whole = if to_end { length } else { length - length % CHUNK };
    whole.min(RUN * CHUNK)
}

/// Compares a chunk with its checksum.
pub(crate) fn verify(folder: &str, file: &FileEntry, chunk: u64, bytes: &[u8]) -> Result<()> {
    let given = crc32c::crc32c(bytes);
    match file.chunk_crc(chunk) {
        Some(expected) if expected == given => Ok(()),
        expected => Err(Error::Damaged {
            file: format!("{folder}/{}", file.name),
            chunk,
            offset: chunk.saturating_mul(CHUNK as u64),
            given,
            expected: expected.unwrap_or_default(),
        }),
    }
}
