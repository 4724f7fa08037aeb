//! Files of the cache in memory maps.

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::{Error, Result};

/// The bytes of a checksum (BLAKE3).
pub(super) const HASH_BYTES: usize = 32;

/// A file of the cache, not checked yet.
pub(super) struct MappedFile {
    pub(super) path: PathBuf,
    pub(super) bytes: Mmap,
}

impl MappedFile {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        Ok(Self { bytes: map(&path)?, path })
    }

    /// Checks what all these files begin with, in a header of `header_bytes`: eight magic bytes, and their version.
    pub(super) fn check(&self, magic: &[u8; 8], version: u32, header_bytes: usize) -> Result<()> {
        if self.bytes.len() < header_bytes {
            return Err(self.error(format!("{} bytes are too few", self.bytes.len())));
        }
        if &self.bytes[..8] != magic {
            return Err(self.error("it does not start with the magic bytes of its kind".into()));
        }
        match self.u32(8) {
            found if found == version => Ok(()),
            found => Err(self.error(format!("it has version {found}, but this program reads {version}"))),
        }
    }

    /// Checks that the file has this many bytes.
    pub(super) fn check_size(&self, size: u128) -> Result<()> {
        if size == self.bytes.len() as u128 {
            return Ok(());
        }
        Err(self.error(format!("it has {} bytes, but its header says {size}", self.bytes.len())))
    }

    pub(super) fn u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(array(&self.bytes, offset))
    }

    pub(super) fn u64(&self, offset: usize) -> u64 {
        read_u64(&self.bytes, offset)
    }

    /// The checksum at `offset`.
    pub(super) fn hash(&self, offset: usize) -> blake3::Hash {
        blake3::Hash::from_bytes(array::<HASH_BYTES>(&self.bytes, offset))
    }

    pub(super) fn error(&self, message: String) -> Error {
        Error::TokenFile { path: self.path.clone(), message }
    }
}

pub(super) fn read_u64(bytes: &[u8], offset: usize) -> u64 {
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
