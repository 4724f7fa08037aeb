//! The checksums of a file, in one pass over its bytes.

use std::fmt::Write;

use super::manifest::CHUNK_BYTES;

/// Computes the checksums of a file from its bytes, given in order.
pub(crate) struct FileHasher {
    whole: blake3::Hasher,
    chunk: u32,
    chunk_bytes: usize,
    chunks: String,
}

/// A file's checksums, as in [`FileMetadata`](crate::FileMetadata).
pub(crate) struct FileChecksums {
    /// BLAKE3 of all bytes.
    pub blake3: String,
    /// CRC-32C of each chunk.
    pub chunks: String,
}

impl Default for FileHasher {
    fn default() -> Self {
        Self { whole: blake3::Hasher::new(), chunk: 0, chunk_bytes: 0, chunks: String::new() }
    }
}

impl FileHasher {
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.whole.update(bytes);
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk_bytes));
            self.chunk = crc32c::crc32c_append(self.chunk, part);
            self.chunk_bytes += part.len();
            if self.chunk_bytes == CHUNK_BYTES {
                self.end_chunk();
            }
            bytes = rest;
        }
    }

    fn end_chunk(&mut self) {
        // Writing into a string cannot fail.
        let _ = write!(self.chunks, "{:08x}", self.chunk);
        (self.chunk, self.chunk_bytes) = (0, 0);
    }

    pub fn finish(mut self) -> FileChecksums {
        if self.chunk_bytes > 0 {
            self.end_chunk();
        }
        FileChecksums { blake3: self.whole.finalize().to_hex().to_string(), chunks: self.chunks }
    }
}
