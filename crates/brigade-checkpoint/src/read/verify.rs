//! Checking every byte of a checkpoint.

use std::fmt;

use super::load::{find, load_manifest};
use super::{Checkpoint, chunks};
use crate::error::{Error, Result};
use crate::format::header::{self, PREFIX, TensorInfo};
use crate::format::manifest::{CHUNK_BYTES, FileMetadata, Manifest};
use crate::format::names::MANIFEST;
use crate::storage::{CheckpointDir, Storage, StorageReader};

/// How many chunks are read at once.
const CHUNKS: usize = 4;

/// What is wrong with a file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name.
    pub file: String,
    /// What is wrong with it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.message)
    }
}

/// Reads every byte of the checkpoint of `step` and compares sizes, checksums and headers with the manifest. Returns the
/// problems, at most one per file; none if the checkpoint is intact.
///
/// # Errors
/// [`Error::StepNotFound`], also if it was removed meanwhile; errors of the storage.
pub fn verify(storage: &dyn Storage, step: u64) -> Result<Vec<Problem>> {
    loop {
        let published = find(storage, step)?;
        let manifest = load_manifest(storage, &published);
        let problems = match &manifest {
            Ok(manifest) => verify_files(storage, &published, manifest),
            Err(error) => vec![Problem { file: MANIFEST.into(), message: error.to_string() }],
        };
        if problems.is_empty() {
            return Ok(problems);
        }
        // A running training may have removed it meanwhile, or replaced it by another of the same step.
        let again = load_manifest(storage, &find(storage, step)?);
        match (&manifest, &again) {
            (Ok(before), Ok(now)) if before != now => {}
            (Err(_), Ok(_)) => {}
            _ => return Ok(problems),
        }
    }
}

impl Checkpoint {
    /// Like [`verify`], for an open checkpoint.
    pub fn verify(&self) -> Vec<Problem> {
        verify_files(&*self.storage, &self.published, &self.manifest)
    }
}

fn verify_files(storage: &dyn Storage, published: &CheckpointDir, manifest: &Manifest) -> Vec<Problem> {
    let problem = |file: &FileMetadata| {
        let written_as = |hash: &str| manifest.files.iter().find(|other| other.blake3 == hash);
        let message = match verify_file(storage, &published.folder, file) {
            Ok(()) => return None,
            Err(Wrong::Error(error)) => error.to_string(),
            Err(Wrong::Header(message)) => message,
            Err(Wrong::Content { hash, damaged }) => match (written_as(&hash), damaged) {
                (Some(other), _) => format!("it holds what was written as {}", other.name),
                (None, Some(damaged)) => damaged.to_string(),
                (None, None) => format!("its BLAKE3 checksum is {hash}, but {} was written", file.blake3),
            },
        };
        Some(Problem { file: file.name.clone(), message })
    };
    manifest.files.iter().filter_map(problem).collect()
}

fn verify_file(storage: &dyn Storage, folder: &str, file: &FileMetadata) -> Result<(), Wrong> {
    let name = format!("{folder}/{}", file.name);
    let reader = storage.open(folder, &file.name)?.ok_or(Error::MissingFile { file: name.clone() })?;
    if reader.size() != file.bytes {
        return Err(Error::SizeMismatch { file: name, given: reader.size(), expected: file.bytes }.into());
    }
    let mut whole = blake3::Hasher::new();
    let mut damaged = None;
    let mut buffer = vec![0; file.bytes.min((CHUNKS * CHUNK_BYTES) as u64) as usize];
    let mut at = 0;
    while at < file.bytes {
        let part = (file.bytes - at).min(buffer.len() as u64) as usize;
        let part = &mut buffer[..part];
        reader.read_at(at, part)?;
        whole.update(part);
        for (number, bytes) in (at / CHUNK_BYTES as u64..).zip(part.chunks(CHUNK_BYTES)) {
            damaged = damaged.or_else(|| chunks::verify(folder, file, number, bytes).err());
        }
        at += part.len() as u64;
    }
    let hash = whole.finalize().to_hex().to_string();
    if damaged.is_some() || hash != file.blake3 {
        return Err(Wrong::Content { hash, damaged });
    }
    verify_header(&*reader, file)
}

enum Wrong {
    Error(Error),
    Header(String),
    Content { hash: String, damaged: Option<Error> },
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Compares a file's header with its entry in the manifest.
fn verify_header(reader: &dyn StorageReader, file: &FileMetadata) -> Result<(), Wrong> {
    let mut prefix = [0; PREFIX];
    if file.bytes < PREFIX as u64 {
        return Err(Wrong::Header("the file is too short for a header".into()));
    }
    reader.read_at(0, &mut prefix)?;
    let length = header::length(prefix, file.bytes).map_err(Wrong::Header)?;
    let mut json = vec![0; length];
    reader.read_at(PREFIX as u64, &mut json)?;
    let data = (PREFIX + length) as u64;
    let tensors = header::parse(&json, file.bytes - data).map_err(Wrong::Header)?;
    let items = file.items.iter().map(|item| TensorInfo::of(item, data));
    if !items.eq(tensors) || file.items.first().is_some_and(|first| first.offset != data) {
        return Err(Wrong::Header("its header contradicts the manifest".into()));
    }
    Ok(())
}
