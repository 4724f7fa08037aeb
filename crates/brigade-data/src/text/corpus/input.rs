//! The bytes of a file, decompressed.

use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

use super::bytes::{BytesRead, Counted};
use super::files::{Compression, SourceFile};
use crate::{Error, Result};

/// A file of text as it is, or as it was before it was compressed.
pub(super) struct Input {
    path: PathBuf,
    compression: Compression,
    reader: Box<dyn BufRead + Send>,
}

impl Input {
    /// The file from byte `start` on, which is 0 for a compressed one; what lies at `until` and after it is probably not read.
    pub(super) fn open(file: &SourceFile, start: u64, until: u64, read: &BytesRead) -> Result<Self> {
        let path = file.path.clone();
        let counted = Counted::open(file, start, until, read)?;
        let reader: Box<dyn BufRead + Send> = match file.compression {
            Compression::None => Box::new(BufReader::with_capacity(1 << 16, counted)),
            compressed => decompressed(compressed, counted, &path)?,
        };
        Ok(Self { path, compression: file.compression, reader })
    }

    /// Adds the bytes up to the end of the line, but not many more than `most`, and returns their number.
    pub(super) fn read_line(&mut self, line: &mut Vec<u8>, most: u64) -> io::Result<usize> {
        self.reader.by_ref().take(most + 1).read_until(b'\n', line)
    }

    /// Goes to the next line, and returns how many bytes that takes.
    pub(super) fn skip_line(&mut self) -> Result<u64> {
        self.reader.skip_until(b'\n').map(|count| count as u64).map_err(|source| self.error(source, ""))
    }

    /// Adds `wanted` bytes, or as many as there are.
    pub(super) fn read_up_to(&mut self, wanted: u64, bytes: &mut Vec<u8>) -> io::Result<u64> {
        self.reader.by_ref().take(wanted).read_to_end(bytes).map(|count| count as u64)
    }

    /// The next bytes, of which [`Self::consume`] says how many have been taken; none at the end.
    pub(super) fn buffered(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    /// Goes past `count` bytes of those that are buffered.
    pub(super) fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }

    /// What a failed reading means; `place` says where it was.
    pub(super) fn error(&self, source: io::Error, place: &str) -> Error {
        let kind = match self.compression {
            // A store that does not answer is not damage.
            _ if Error::is_of_store(&source) => return Error::io("read", &self.path, source),
            Compression::None => return Error::io("read", &self.path, source),
            Compression::Gzip => "a gzip file",
            Compression::Zstd => "a zstd file",
        };
        Error::Damaged { path: self.path.clone(), kind, place: place.into(), message: source.to_string() }
    }
}

#[cfg(feature = "parquet")]
fn decompressed(
    compression: Compression,
    file: Counted,
    path: &std::path::Path,
) -> Result<Box<dyn BufRead + Send>> {
    Ok(match compression {
        Compression::Zstd => {
            let decoder = zstd::Decoder::new(file).map_err(|source| Error::io("open", path, source))?;
            Box::new(BufReader::with_capacity(1 << 16, decoder))
        }
        // Several streams one after the other are one file, as for gzip.
        _ => Box::new(BufReader::with_capacity(
            1 << 16,
            flate2::bufread::MultiGzDecoder::new(BufReader::new(file)),
        )),
    })
}

#[cfg(not(feature = "parquet"))]
fn decompressed(_: Compression, _: Counted, path: &std::path::Path) -> Result<Box<dyn BufRead + Send>> {
    Err(Error::NotBuilt { path: path.into(), kind: "a compressed file" })
}
