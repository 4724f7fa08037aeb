//! The valid examples that inputs are made from.

use std::path::PathBuf;
use std::{fs, io};

use crate::target::Target;

/// The payloads of a target: what it makes by the program's own writers, then the files of `corpus/<target>/` by name.
///
/// # Errors
/// If a file of the corpus cannot be read.
pub fn payloads(target: &Target) -> io::Result<Vec<Vec<u8>>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files = match fs::read_dir(&folder) {
        Ok(entries) => {
            entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![],
        Err(error) => return Err(error),
    };
    files.sort();
    let mut payloads = (target.payloads)();
    for file in files {
        payloads.push(fs::read(file)?);
    }
    Ok(payloads)
}
