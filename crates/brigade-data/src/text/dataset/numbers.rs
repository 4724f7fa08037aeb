//! Columns of numbers while a file with them is being written.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Bytes that are held in memory.
const BUFFER: usize = 1 << 16;

/// The bytes of a number.
const WIDTH: u64 = 8;

/// Numbers in a file without a name, as there may be more than memory holds.
#[derive(Debug)]
pub(super) struct Numbers {
    file: BufWriter<File>,
    len: u64,
    /// The file that they are for, which messages name.
    of: PathBuf,
}

impl Numbers {
    /// None yet. Their file is in the folder of the one that they are for.
    pub(super) fn create(of: &Path) -> Result<Self> {
        let folder = of.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let file = tempfile::tempfile_in(folder).map_err(|source| Error::io("create", of, source))?;
        Ok(Self { file: BufWriter::with_capacity(BUFFER, file), len: 0, of: of.to_owned() })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn push(&mut self, number: u64) -> Result<()> {
        self.file.write_all(&number.to_le_bytes()).map_err(|source| Error::io("write", &self.of, source))?;
        self.len += 1;
        Ok(())
    }

    /// Gives all of them to `take`, little-endian, part by part.
    pub(super) fn read_all(&mut self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.file.flush()?;
        let (mut buffer, mut offset, end) = (vec![0; BUFFER], 0, self.len * WIDTH);
        while offset < end {
            let length = (end - offset).min(BUFFER as u64) as usize;
            self.file.get_ref().read_exact_at(&mut buffer[..length], offset)?;
            take(&buffer[..length])?;
            offset += length as u64;
        }
        Ok(())
    }
}
