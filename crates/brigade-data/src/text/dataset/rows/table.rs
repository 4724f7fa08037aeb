//! The file of rows.

use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use brigade_files::AtomicFile;

use super::{
    GROUP, LongExamples, RowCounts, RowOptions, SequenceLayout, TokenFile, best_fit_decreasing, pieces,
};
use crate::text::dataset::mapped::{HASH_BYTES, MappedFile, read_u64};
use crate::text::dataset::numbers::Numbers;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"BRGTROWS";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// P, R and the counts.
const NUMBERS: usize = 6;
const FOOTER_BYTES: usize = 8 * NUMBERS + HASH_BYTES;

/// Rows of parts of documents, in a memory map.
#[derive(Debug)]
pub(crate) struct RowTable {
    file: memmap2::Mmap,
    parts: usize,
    rows: usize,
    counts: RowCounts,
}

impl RowTable {
    /// Where the rows of split `name` in `folder` are, for these options.
    pub(crate) fn path(folder: &Path, name: &str, options: &RowOptions) -> PathBuf {
        let RowOptions { sequence_length, layout, long, target, .. } = options;
        let target = format!("{target:?}").to_lowercase();
        folder.join(format!("{name}.{layout}-{sequence_length}-{long}-{target}.rows"))
    }

    /// Opens a file of rows and checks it: size, checksum, and that all parts are in the split.
    ///
    /// # Errors
    /// [`Error::TokenFile`] where anything does not fit; [`Error::Io`].
    pub(crate) fn open(path: &Path, tokens: &TokenFile, options: &RowOptions) -> Result<Self> {
        let file = MappedFile::open(path.to_owned())?;
        file.check(MAGIC, VERSION, HEADER_BYTES + FOOTER_BYTES)?;
        let footer = file.bytes.len() - FOOTER_BYTES;
        let number = |index: usize| file.u64(footer + 8 * index);
        let (parts, rows) = (number(0), number(1));
        file.check_size(
            (HEADER_BYTES + FOOTER_BYTES) as u128 + 16 * u128::from(parts) + 8 * (u128::from(rows) + 1),
        )?;
        let mut hasher = hasher(tokens, options);
        let hash_at = file.bytes.len() - HASH_BYTES;
        hasher.update(&file.bytes[..hash_at]);
        if hasher.finalize() != file.hash(hash_at) {
            return Err(file.error("it does not match its checksum, or belongs to other tokens".into()));
        }
        let counts =
            RowCounts { long: number(2), cut_tokens: number(3), unlearned: number(4), inputs: number(5) };
        // The size was compared with the map, so they fit in memory's address range.
        let MappedFile { path, bytes } = file;
        let table = Self { file: bytes, parts: parts as usize, rows: rows as usize, counts };
        table.check(tokens, options).map_err(|message| Error::TokenFile { path, message })?;
        Ok(table)
    }

    /// Puts the documents of `tokens` into rows, and writes them.
    ///
    /// # Errors
    /// [`Error::LongExample`] where long ones are refused; [`Error::Io`], [`Error::DiskFull`].
    pub(crate) fn write(path: &Path, tokens: &TokenFile, options: &RowOptions) -> Result<()> {
        let failed = |source| Error::io("write", path, source);
        let file = AtomicFile::create(path).map_err(failed)?;
        let mut writer = Writer {
            file: BufWriter::new(file),
            hasher: hasher(tokens, options),
            parts: 0,
            starts: Numbers::create(path)?,
            path,
        };
        writer.write(&[MAGIC.as_slice(), &VERSION.to_le_bytes(), &[0; 4]].concat())?;
        let mut counts = RowCounts::default();
        for first in (0..tokens.document_count()).step_by(GROUP) {
            let mut group = Vec::new();
            for document in first..tokens.document_count().min(first + GROUP) {
                if options.long == LongExamples::Refuse {
                    check_length(tokens, document, options)?;
                }
                group.extend(pieces(tokens, document, options, &mut counts));
            }
            writer.rows(&group, options)?;
        }
        writer.finish(&counts)
    }

    /// The number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// What was met on the way.
    pub(crate) fn counts(&self) -> RowCounts {
        self.counts
    }

    /// The parts of a row, as ranges of tokens.
    ///
    /// # Panics
    /// Where `row` is not below [`len`](Self::len).
    pub(crate) fn parts(&self, row: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        (self.start(row)..self.start(row + 1)).map(|part| self.part(part))
    }

    fn start(&self, row: usize) -> usize {
        self.entry(2 * self.parts + row)
    }

    fn part(&self, part: usize) -> Range<usize> {
        self.entry(2 * part)..self.entry(2 * part + 1)
    }

    fn entry(&self, index: usize) -> usize {
        read_u64(&self.file, HEADER_BYTES + 8 * index) as usize
    }

    fn check(&self, tokens: &TokenFile, options: &RowOptions) -> std::result::Result<(), String> {
        let (beyond, length) = (options.beyond_inputs(), options.sequence_length);
        if self.start(0) != 0 || self.start(self.rows) != self.parts {
            return Err(format!("rows of parts {} to {}", self.start(0), self.start(self.rows)));
        }
        for row in 0..self.rows {
            let (start, end) = (self.start(row), self.start(row + 1));
            if start >= end || end > self.parts {
                return Err(format!("row {row} has parts {start} to {end} of {}", self.parts));
            }
            let mut inputs = 0usize;
            for part in self.parts(row) {
                if part.start >= part.end || part.len() <= beyond || part.end > tokens.len() {
                    return Err(format!("row {row} has tokens {part:?} of {}", tokens.len()));
                }
                inputs = inputs.saturating_add(part.len() - beyond);
            }
            if inputs > length {
                return Err(format!("row {row} has {inputs} tokens, more than {length}"));
            }
        }
        Ok(())
    }
}

/// Of what the rows are made from.
fn hasher(tokens: &TokenFile, options: &RowOptions) -> blake3::Hasher {
    let RowOptions { sequence_length, layout, long, target, .. } = options;
    let mut hasher = blake3::Hasher::new();
    hasher.update(tokens.hash().as_bytes());
    hasher.update(format!("{sequence_length} {layout} {long} {target:?}\n").as_bytes());
    hasher
}

fn check_length(tokens: &TokenFile, document: usize, options: &RowOptions) -> Result<()> {
    let given = tokens.document(document).len() - options.beyond_inputs();
    if given <= options.sequence_length {
        return Ok(());
    }
    let (document, place, most) = (document + 1, String::new(), options.sequence_length);
    Err(Error::LongExample { document, place, given, most })
}

struct Writer<'a> {
    path: &'a Path,
    file: BufWriter<AtomicFile>,
    hasher: blake3::Hasher,
    parts: u64,
    starts: Numbers,
}

impl Writer<'_> {
    /// Writes the rows of these parts.
    fn rows(&mut self, parts: &[Range<usize>], options: &RowOptions) -> Result<()> {
        let sizes: Vec<u32> =
            parts.iter().map(|part| (part.len() - options.beyond_inputs()) as u32).collect();
        let row_of = match options.layout {
            SequenceLayout::Bfd => best_fit_decreasing(&sizes, options.sequence_length),
            _ => (0..sizes.len() as u32).collect(),
        };
        let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
        // Parts of a row stay in their order.
        order.sort_by_key(|&part| row_of[part as usize]);
        let mut last = None;
        for part in order {
            let row = row_of[part as usize];
            if last != Some(row) {
                self.starts.push(self.parts)?;
                last = Some(row);
            }
            let Range { start, end } = &parts[part as usize];
            self.write(&[(*start as u64).to_le_bytes(), (*end as u64).to_le_bytes()].concat())?;
            self.parts += 1;
        }
        Ok(())
    }

    fn finish(mut self, counts: &RowCounts) -> Result<()> {
        let path = self.path;
        let failed = |source| Error::io("write", path, source);
        let rows = self.starts.len();
        self.starts.push(self.parts)?;
        let written = self.starts.read_all(|bytes| {
            self.hasher.update(bytes);
            self.file.write_all(bytes)
        });
        written.map_err(failed)?;
        let RowCounts { long, cut_tokens, unlearned, inputs } = *counts;
        for number in [self.parts, rows, long, cut_tokens, unlearned, inputs] {
            self.write(&number.to_le_bytes())?;
        }
        let hash = self.hasher.finalize();
        let ended = self.file.write_all(hash.as_bytes()).and_then(|()| {
            let file = self.file.into_inner().map_err(|error| error.into_error())?;
            file.commit().map(drop)
        });
        ended.map_err(failed)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes).map_err(|source| Error::io("write", self.path, source))
    }
}

#[cfg(test)]
mod tests;
