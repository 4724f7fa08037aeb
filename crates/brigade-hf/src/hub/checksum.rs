//! What the hub says of a file's content.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// How many bytes are read at once.
const BUFFER: usize = 1 << 20;

/// A hash of a content, in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksum<'h> {
    /// Of a large file.
    Sha256(&'h str),
    /// Of a file that Git itself keeps: the name of its blob.
    GitSha1(&'h str),
}

impl Checksum<'_> {
    /// What differs, in words; none if the content of a file of this size is as expected.
    pub fn difference(self, file: &mut File, size: u64) -> io::Result<Option<String>> {
        let (kind, expected, found) = match self {
            Self::Sha256(expected) => ("SHA-256", expected, digest(Sha256::new(), file)?),
            Self::GitSha1(expected) => {
                let start = Sha1::new().chain_update(format!("blob {size}\0"));
                ("Git SHA-1", expected, digest(start, file)?)
            }
        };
        let is_same = found == expected.to_lowercase();
        Ok((!is_same).then(|| format!("the {kind} {found}, but the hub says {expected}")))
    }
}

/// The hash of all of a file.
fn digest(mut hasher: impl Digest, file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            length => hasher.update(&buffer[..length]),
        }
    }
}
