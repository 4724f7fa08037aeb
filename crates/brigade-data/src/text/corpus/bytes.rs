//! The bytes of a file, on a disk or in an object store.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::files::SourceFile;
use super::remote::Reader;
use crate::{Error, Result};

/// How many bytes of files were read, for a progress bar.
pub(crate) type BytesRead = Arc<AtomicU64>;

/// Why a file in a store could not be read, for readers that would say it in their own words.
#[cfg(feature = "parquet")]
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<std::sync::Mutex<Option<Error>>>);

#[cfg(feature = "parquet")]
impl Failure {
    /// The failure, if there was one.
    pub(super) fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }

    /// Keeps what the store says, and says it to the reader.
    pub(super) fn note(&self, file: &SourceFile, error: io::Error) -> io::Error {
        let text = error.to_string();
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(Error::io("read", &file.path, error));
        io::Error::other(text)
    }
}

/// A file that is read in order; what is read is counted.
pub(super) struct Counted {
    bytes: Bytes,
    read: BytesRead,
}

enum Bytes {
    File(File),
    Object(Box<Reader>),
}

impl Counted {
    /// The file from byte `start` on. What lies at `until` and after it is probably not read.
    pub(super) fn open(file: &SourceFile, start: u64, until: u64, read: &BytesRead) -> Result<Self> {
        let bytes = match &file.object {
            Some(object) => Bytes::Object(Box::new(object.reader(start, until))),
            None => {
                let failed = |source| Error::io("open", &file.path, source);
                let mut opened = File::open(&file.path).map_err(failed)?;
                opened.seek(SeekFrom::Start(start)).map_err(failed)?;
                Bytes::File(opened)
            }
        };
        Ok(Self { bytes, read: Arc::clone(read) })
    }
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.bytes {
            Bytes::File(file) => file.read(buffer)?,
            Bytes::Object(object) => object.read(buffer)?,
        };
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
