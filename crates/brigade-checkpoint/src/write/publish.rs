//! Publishing: one rank writes the manifest and makes the checkpoint visible.

use std::time::{SystemTime, UNIX_EPOCH};

use super::abort::{abort_save, is_published};
use super::shard::WriteResult;
use crate::error::{Error, Result};
use crate::format::manifest::{FORMAT_VERSION, MAX_MANIFEST_BYTES, Manifest, TrainState, hash_line};
use crate::format::names::{MANIFEST, MANIFEST_HASH, frozen_file, rank_file};
use crate::storage::{StagingDir, Storage};

/// Makes a save visible that all ranks have written, and returns its manifest. One rank calls this.
///
/// A checkpoint of the same step is replaced; it stays until the new one is complete.
///
/// # Errors
/// [`Error::ForeignSave`] and [`Error::DuplicateRank`] for entries that do not belong together, [`Error::NotShared`] and
/// [`Error::SizeMismatch`] when a rank's file is not where this rank looks, [`Error::Coverage`] when items leave a gap or
/// overlap; [`Error::InvalidManifest`] for units that contradict themselves: the save's folder is removed then. While writing
/// and renaming, the errors of the storage.
pub fn publish(
    storage: &dyn Storage,
    staging: &StagingDir,
    state: TrainState,
    entries: Vec<WriteResult>,
) -> Result<Manifest> {
    let abort = |_: &Error| {
        // The caller gets this failure, even if cleaning up fails, too.
        let _ = abort_save(storage, staging);
    };
    let manifest = describe(storage, staging, state, entries).inspect_err(abort)?;
    if let Err(error) = write_manifest(storage, staging, &manifest)
        // An object store may have taken the manifest, which is written last, although it did not say so.
        && !is_published(storage, staging).unwrap_or(false)
    {
        abort(&error);
        return Err(error);
    }
    storage.publish(staging)?;
    Ok(manifest)
}

fn describe(
    storage: &dyn Storage,
    staging: &StagingDir,
    state: TrainState,
    entries: Vec<WriteResult>,
) -> Result<Manifest> {
    let folder = storage.staging_folder(staging);
    let mut files = Vec::with_capacity(entries.len());
    for WriteResult { staging: given, file } in entries {
        let rank = file.rank;
        if given != *staging {
            return Err(Error::ForeignSave { rank, given: given.to_string(), expected: staging.to_string() });
        }
        // Whatever name it was given, only these are looked for.
        let name = Some(frozen_file(rank)).filter(|name| *name == file.name);
        let name = name.unwrap_or_else(|| rank_file(rank));
        match storage.open(&folder, &name)?.map(|reader| reader.size()) {
            None => {
                let location = storage.location().into();
                return Err(Error::NotShared { location, rank, file: format!("{folder}/{name}") });
            }
            Some(given) if given != file.bytes => {
                return Err(Error::SizeMismatch {
                    file: format!("{folder}/{name}"),
                    given,
                    expected: file.bytes,
                });
            }
            Some(_) => files.push(file),
        }
    }
    files.sort_by(|a, b| a.order().cmp(&b.order()));
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let manifest = Manifest { version: FORMAT_VERSION, step: staging.step(), created, state, files };
    manifest.check()?;
    Ok(manifest)
}

fn write_manifest(storage: &dyn Storage, staging: &StagingDir, manifest: &Manifest) -> Result<()> {
    let folder = storage.staging_folder(staging);
    let json = serde_json::to_vec(manifest)
        .map_err(|error| Error::InvalidManifest { file: MANIFEST.into(), message: error.to_string() })?;
    if json.len() as u64 > MAX_MANIFEST_BYTES {
        let message = format!("{} bytes; at most {MAX_MANIFEST_BYTES} are allowed", json.len());
        return Err(Error::InvalidManifest { file: MANIFEST.into(), message });
    }
    // What can be written must be readable: settings nested too deeply are found here.
    Manifest::parse(&json, MANIFEST)?;
    for (name, bytes) in [(MANIFEST_HASH, hash_line(&json).as_bytes()), (MANIFEST, &json)] {
        let mut writer = storage.create(&folder, name, bytes.len() as u64)?;
        writer.write(bytes)?;
        writer.finish()?;
    }
    Ok(())
}
