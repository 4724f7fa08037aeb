//! The chunks of a Parquet file, wherever it is.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};

use crate::text::corpus::bytes::Failure;
use crate::text::corpus::files::SourceFile;
#[cfg(feature = "object-store")]
use crate::text::corpus::remote::{Object, Reader};
use crate::{Error, Result};

/// Small items of a chunk are collected up to this many bytes.
const BUFFER: usize = 8 << 10;

/// A file of chunks that are read at offsets.
pub(super) enum ChunkFile {
    Local(File),
    #[cfg(feature = "object-store")]
    Remote(Box<SharedObject>),
}

impl ChunkFile {
    /// Opens the file; why it cannot be read later is noted in `failure`.
    pub(super) fn open(file: &SourceFile, failure: &Failure) -> Result<Self> {
        #[cfg(feature = "object-store")]
        if let Some(object) = &file.object {
            let reader = Arc::new(Mutex::new(object.reader(0, u64::MAX)));
            let (file, object, failure) = (file.clone(), object.clone(), failure.clone());
            return Ok(Self::Remote(Box::new(SharedObject { file, object, reader, failure })));
        }
        let _ = failure;
        Ok(Self::Local(File::open(&file.path).map_err(|source| Error::io("open", &file.path, source))?))
    }
}

impl Length for ChunkFile {
    fn len(&self) -> u64 {
        match self {
            Self::Local(file) => file.len(),
            #[cfg(feature = "object-store")]
            Self::Remote(shared) => shared.object.size(),
        }
    }
}

impl ChunkReader for ChunkFile {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(match self {
            Self::Local(file) => Box::new(file.get_read(start)?),
            #[cfg(feature = "object-store")]
            Self::Remote(shared) => Box::new(BufReader::with_capacity(
                BUFFER,
                SharedReader { shared: (**shared).clone(), position: start },
            )),
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        match self {
            Self::Local(file) => file.get_bytes(start, length),
            #[cfg(feature = "object-store")]
            Self::Remote(shared) => Ok(shared.read_at(start, length)?.into()),
        }
    }
}

/// An object, whose readers share what has been read of it.
#[cfg(feature = "object-store")]
#[derive(Clone)]
pub(super) struct SharedObject {
    file: SourceFile,
    object: Object,
    reader: Arc<Mutex<Reader>>,
    failure: Failure,
}

#[cfg(feature = "object-store")]
impl SharedObject {
    fn read_at(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let range = start..start.saturating_add(length as u64);
        // A range that the file makes up is its damage, not the store's.
        if range.end > self.object.size() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let read = brigade_store::read_at(&mut reader, range);
        read.map_err(|error| self.failure.note(&self.file, error.into()))
    }
}

/// Reads an object from a place on.
#[cfg(feature = "object-store")]
struct SharedReader {
    shared: SharedObject,
    position: u64,
}

#[cfg(feature = "object-store")]
impl Read for SharedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.shared.object.size().saturating_sub(self.position);
        let count = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let bytes = self.shared.read_at(self.position, count)?;
        buffer[..count].copy_from_slice(&bytes);
        self.position += count as u64;
        Ok(count)
    }
}
