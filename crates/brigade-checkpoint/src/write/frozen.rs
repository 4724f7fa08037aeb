//! A rank's file of values that training does not change: written once, and linked into later checkpoints.

use super::shard::{FileParts, RankShard, WriteResult, write_file};
use crate::error::{Error, Result};
use crate::format::manifest::FileMetadata;
use crate::format::names::frozen_file;
use crate::read::find;
use crate::storage::{StagingDir, Storage};

/// Files are compared in parts of this many bytes.
const PART: usize = 16 << 20;

/// Puts into a save the frozen file that the checkpoint of `step` has: one that this process wrote, or has compared with what it
/// would have written. None of its bytes are read or sent.
///
/// # Errors
/// If there is no such file of that size, or the storage cannot [link](Storage::link) it. The values can be
/// [written](write_frozen) instead.
pub fn link_frozen(
    storage: &dyn Storage,
    staging: &StagingDir,
    step: u64,
    file: &FileMetadata,
) -> Result<WriteResult> {
    link(storage, staging, &find(storage, step)?.folder, &file.name, file.bytes)?;
    Ok(WriteResult { staging: staging.clone(), file: file.clone() })
}

/// Writes the frozen file of `rank`, of values that training does not change, as [`write_shard`](crate::write_shard) writes the
/// others. If the checkpoint of the step `earlier` has a file of the same bytes, which are all read and compared, that is linked
/// instead.
///
/// # Errors
/// As [`write_shard`](crate::write_shard).
pub fn write_frozen(
    storage: &dyn Storage,
    staging: &StagingDir,
    rank: usize,
    shard: &RankShard,
    earlier: Option<u64>,
) -> Result<WriteResult> {
    let name = frozen_file(rank);
    let link_equal = |step: u64, parts: &FileParts<'_>| -> Result<bool> {
        let folder = find(storage, step)?.folder;
        let is_equal = has_bytes(storage, &folder, &name, parts)?;
        if is_equal {
            link(storage, staging, &folder, &name, parts.bytes)?;
        }
        Ok(is_equal)
    };
    // Whatever hinders it, the file can be written.
    let links = |parts: &FileParts<'_>| earlier.is_some_and(|step| link_equal(step, parts).unwrap_or(false));
    write_file(storage, staging, (rank, name.clone()), shard, links)
}

/// Whether a file has exactly these bytes.
fn has_bytes(storage: &dyn Storage, folder: &str, name: &str, parts: &FileParts<'_>) -> Result<bool> {
    let Some(file) = storage.open(folder, name)?.filter(|file| file.size() == parts.bytes) else {
        return Ok(false);
    };
    let (mut at, mut there) = (0, Vec::new());
    for part in parts.of(PART) {
        there.resize(part.len(), 0);
        file.read_at(at, &mut there)?;
        if there != part {
            return Ok(false);
        }
        at += part.len() as u64;
    }
    Ok(true)
}

/// Links a file of `bytes` bytes from a folder into a save.
fn link(storage: &dyn Storage, staging: &StagingDir, from: &str, name: &str, bytes: u64) -> Result<()> {
    let folder = storage.staging_folder(staging);
    storage.link(from, &folder, name)?;
    let file = format!("{folder}/{name}");
    // It may have been cut off since, and a store that copies nothing may have made an empty object.
    match storage.open(&folder, name)?.map(|there| there.size()) {
        Some(given) if given == bytes => Ok(()),
        Some(given) => Err(Error::SizeMismatch { file, given, expected: bytes }),
        None => Err(Error::MissingFile { file }),
    }
}
