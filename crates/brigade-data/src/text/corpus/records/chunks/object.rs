//! A file of chunks in an object store.

use std::io::{self, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use crate::text::corpus::bytes::Failure;
use crate::text::corpus::files::SourceFile;
use crate::text::corpus::remote::{Object, Reader};

/// Small items of a chunk are collected up to this many bytes.
const BUFFER: usize = 8 << 10;

/// An object, whose readers share what has been read of it.
#[derive(Clone)]
pub(crate) struct SharedObject {
    file: SourceFile,
    object: Object,
    reader: Arc<Mutex<Reader>>,
    failure: Failure,
}

impl SharedObject {
    pub fn new(file: &SourceFile, object: &Object, failure: &Failure) -> Self {
        let reader = Arc::new(Mutex::new(object.reader(0, u64::MAX)));
        Self { file: file.clone(), object: object.clone(), reader, failure: failure.clone() }
    }

    /// The object's bytes.
    pub fn size(&self) -> u64 {
        self.object.size()
    }

    /// What reads the object from a place on.
    pub fn reader(&self, position: u64) -> impl Read + 'static {
        BufReader::with_capacity(BUFFER, SharedReader { shared: self.clone(), position })
    }

    pub fn read_at(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
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
struct SharedReader {
    shared: SharedObject,
    position: u64,
}

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
