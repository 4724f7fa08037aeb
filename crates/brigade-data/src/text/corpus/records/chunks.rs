//! The chunks of a Parquet file, wherever it is.

#[cfg(feature = "object-store")]
mod object;

use std::fs::File;
use std::io::Read;

use bytes::Bytes;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};

use crate::text::corpus::bytes::Failure;
use crate::text::corpus::files::SourceFile;
use crate::{Error, Result};

/// A file of chunks that are read at offsets.
pub(super) enum ChunkFile {
    Local(File),
    #[cfg(feature = "object-store")]
    Remote(Box<object::SharedObject>),
}

impl ChunkFile {
    /// Opens the file; why it cannot be read later is noted in `failure`.
    pub(super) fn open(file: &SourceFile, failure: &Failure) -> Result<Self> {
        #[cfg(feature = "object-store")]
        if let Some(object) = &file.object {
            return Ok(Self::Remote(Box::new(object::SharedObject::new(file, object, failure))));
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
            Self::Remote(shared) => shared.size(),
        }
    }
}

impl ChunkReader for ChunkFile {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(match self {
            Self::Local(file) => Box::new(file.get_read(start)?),
            #[cfg(feature = "object-store")]
            Self::Remote(shared) => Box::new(shared.reader(start)),
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
