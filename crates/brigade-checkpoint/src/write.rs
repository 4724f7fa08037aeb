//! Writing: each rank its file, one rank the manifest.

use std::iter::once;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::check::{check_slot_name, check_unit_name};
use crate::hash::FileHasher;
use crate::header::{self, MAX_HEADER_BYTES};
use crate::layout::{MANIFEST, MANIFEST_HASH, StagingDir, rank_file};
use crate::manifest::{
    FORMAT_VERSION, FileMetadata, ItemMetadata, MAX_MANIFEST_BYTES, Manifest, TrainState, WriteResult,
    hash_line,
};
use crate::storage::Storage;
use crate::{Error, Result};

/// Data are handed to the storage and to the checksums in parts of this many bytes.
const PART: usize = 1 << 20;

/// A contiguous range of a slot with its values.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteItem {
    /// The unit.
    pub unit: String,
    /// The slot.
    pub slot: String,
    /// First element in the slot.
    pub start: usize,
    /// The values; a item without any is not written.
    pub values: Vec<f32>,
}

/// All that one rank writes, in any order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankShard {
    /// The items; no two of them overlap.
    pub items: Vec<WriteItem>,
}

impl RankShard {
    /// Bytes of the values: what the rank's file takes, but for its header.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| size_of_val(item.values.as_slice()) as u64).sum()
    }
}

/// Checks that `bytes` more fit into the storage, where its free space is known.
fn check_space(storage: &dyn Storage, bytes: u64) -> Result<()> {
    match storage.free_space()? {
        Some(free) if free < bytes => {
            Err(Error::NoSpace { location: storage.location().into(), needed: bytes, free })
        }
        _ => Ok(()),
    }
}

/// Writes the file of `rank` and flushes it to the disk; a second thread computes the checksums meanwhile.
///
/// The same shard gives the same bytes. The result goes to the rank that calls [`publish`]. Whether there is space for
/// this file is checked before; for those of all ranks the caller can compare the sum with
/// [`free_space`](Storage::free_space) before any of them begins.
///
/// # Errors
/// [`Error::InvalidName`], [`Error::Coverage`] or [`Error::TooLarge`] for a shard that cannot be stored and
/// [`Error::NoSpace`], all before anything is written; [`Error::DiskFull`], [`Error::Io`] or [`Error::Object`] while
/// writing. The save's folder is removed then, with the files of other ranks: no such save can be published.
pub fn write_shard(
    storage: &dyn Storage,
    staging: &StagingDir,
    rank: usize,
    shard: &RankShard,
) -> Result<WriteResult> {
    let items = sorted(shard)?;
    let mut entries: Vec<_> = items
        .iter()
        .map(|item| ItemMetadata {
            unit: item.unit.clone(),
            slot: item.slot.clone(),
            start: item.start,
            elements: item.values.len(),
            offset: 0,
        })
        .collect();
    let header = header::write(&mut entries);
    if header.len() as u64 > MAX_HEADER_BYTES {
        let (what, given) = ("the header's size in bytes", header.len() as u64);
        return Err(Error::TooLarge { rank, what, given, limit: MAX_HEADER_BYTES });
    }
    let bytes = header.len() as u64 + shard.bytes();
    check_space(storage, bytes)?;

    let name = rank_file(rank);
    let write = || {
        let mut writer = storage.create(&storage.staging_folder(staging), &name, bytes)?;
        parts(&header, &items).try_for_each(|part| writer.write(part))?;
        writer.finish()
    };
    let (written, hashes) = std::thread::scope(|scope| {
        let hashes = scope.spawn(|| {
            let mut hasher = FileHasher::default();
            parts(&header, &items).for_each(|part| hasher.update(part));
            hasher.finish()
        });
        (write(), hashes.join())
    });
    if let Err(error) = written {
        // What failed is what the caller must hear of, not that cleaning up failed, too.
        let _ = abort_save(storage, staging);
        return Err(error);
    }
    let hashes = hashes.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let file =
        FileMetadata { name, rank, bytes, blake3: hashes.blake3, chunks: hashes.chunks, items: entries };
    Ok(WriteResult { staging: staging.clone(), file })
}

/// The items that hold values, by unit, slot and start.
fn sorted(shard: &RankShard) -> Result<Vec<&WriteItem>> {
    let mut items: Vec<_> = shard.items.iter().filter(|item| !item.values.is_empty()).collect();
    items.sort_by_key(|item| (&item.unit, &item.slot, item.start));
    for item in &items {
        check_unit_name(&item.unit)?;
        check_slot_name(&item.slot)?;
    }
    for pair in items.windows(2) {
        let [left, right] = pair else { continue };
        let end = left.start.saturating_add(left.values.len());
        if (&left.unit, &left.slot) == (&right.unit, &right.slot) && right.start < end {
            return Err(Error::Coverage {
                unit: left.unit.clone(),
                slot: left.slot.clone(),
                range: right.start..end,
                defect: "are written twice by one rank",
                elements: end,
            });
        }
    }
    Ok(items)
}

/// The file's bytes in order.
fn parts<'a>(header: &'a [u8], items: &'a [&WriteItem]) -> impl Iterator<Item = &'a [u8]> {
    let values = items.iter().flat_map(|item| bytemuck::cast_slice::<f32, u8>(&item.values).chunks(PART));
    once(header).chain(values)
}

/// Makes a save visible that all ranks have written, and returns its manifest. One rank calls this.
///
/// A checkpoint of the same step is replaced; it stays until the new one is whole.
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
    let manifest = describe(storage, staging, state, entries);
    let written =
        manifest.and_then(|manifest| write_manifest(storage, staging, &manifest).map(|()| manifest));
    let manifest = written.inspect_err(|_| {
        // What failed is what the caller must hear of, not that cleaning up failed, too.
        let _ = abort_save(storage, staging);
    })?;
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
        let name = rank_file(rank);
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
    files.sort_by_key(|file| file.rank);
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

/// Removes what was written of a save that will not be published, when no rank writes any more.
///
/// # Errors
/// Those of the storage; not when nothing was written.
pub fn abort_save(storage: &dyn Storage, staging: &StagingDir) -> Result<()> {
    storage.remove(&storage.staging_folder(staging))
}
