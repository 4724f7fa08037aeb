//! Finding a checkpoint and loading its manifest.

use crate::error::{Error, Result};
use crate::format::manifest::{MAX_MANIFEST_BYTES, Manifest, hash_line};
use crate::format::names::{MANIFEST, MANIFEST_HASH};
use crate::storage::{CheckpointDir, Storage};

/// The visible checkpoint of a step.
pub(crate) fn find(storage: &dyn Storage, step: u64) -> Result<CheckpointDir> {
    let mut published = storage.published()?;
    if let Some(index) = published.iter().position(|published| published.step == step) {
        return Ok(published.swap_remove(index));
    }
    let there: Vec<_> = published.iter().map(|published| published.step.to_string()).collect();
    let there = if there.is_empty() { "none".into() } else { there.join(", ") };
    Err(Error::StepNotFound { location: storage.location().into(), step, there })
}

/// Loads a manifest and compares the files' sizes with it.
pub(crate) fn load(storage: &dyn Storage, published: &CheckpointDir) -> Result<Manifest> {
    let manifest = load_manifest(storage, published)?;
    for file in &manifest.files {
        let name = format!("{}/{}", published.folder, file.name);
        match storage.open(&published.folder, &file.name)?.map(|reader| reader.size()) {
            None => return Err(Error::MissingFile { file: name }),
            Some(given) if given != file.bytes => {
                return Err(Error::SizeMismatch { file: name, given, expected: file.bytes });
            }
            Some(_) => {}
        }
    }
    Ok(manifest)
}

/// Reads the manifest of a folder and compares it with its checksum.
pub(super) fn load_manifest(storage: &dyn Storage, published: &CheckpointDir) -> Result<Manifest> {
    let folder = &published.folder;
    let file = format!("{folder}/{MANIFEST}");
    let bytes = read_whole(storage, folder, MANIFEST, MAX_MANIFEST_BYTES)?;
    let line = hash_line(&bytes);
    if read_whole(storage, folder, MANIFEST_HASH, line.len() as u64)? != line.as_bytes() {
        let message = format!("does not match {MANIFEST_HASH}; one of the two is damaged");
        return Err(Error::InvalidManifest { file, message });
    }
    let manifest = Manifest::parse(&bytes, &file)?;
    if manifest.step != published.step {
        let message = format!("is of step {}, its folder of step {}", manifest.step, published.step);
        return Err(Error::InvalidManifest { file, message });
    }
    Ok(manifest)
}

/// Reads a small file; `limit` bounds what is allocated.
fn read_whole(storage: &dyn Storage, folder: &str, name: &str, limit: u64) -> Result<Vec<u8>> {
    let file = format!("{folder}/{name}");
    let reader = storage.open(folder, name)?.ok_or_else(|| Error::MissingFile { file: file.clone() })?;
    let size = reader.size();
    let Some(length) = usize::try_from(size).ok().filter(|_| size <= limit) else {
        return Err(Error::InvalidManifest {
            file,
            message: format!("{size} bytes; at most {limit} are allowed"),
        });
    };
    let mut bytes = vec![0; length];
    reader.read_at(0, &mut bytes)?;
    Ok(bytes)
}
