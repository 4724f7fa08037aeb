//! Writing a rank's file.

use std::iter::once;

use serde::{Deserialize, Serialize};

use super::abort::abort_save;
use crate::error::{Error, Result};
use crate::format::checksums::FileHasher;
use crate::format::header::{self, MAX_HEADER_BYTES};
use crate::format::manifest::{FileMetadata, ItemMetadata};
use crate::format::names::rank_file;
use crate::format::validate::{check_slot_name, check_unit_name};
use crate::storage::{StagingDir, Storage};

/// Data go to the storage and to the checksums in parts of this many bytes.
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
    /// The values; an item without values is not written.
    pub values: Vec<f32>,
}

/// Everything that one rank writes, in any order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankShard {
    /// The items; no two of them overlap.
    pub items: Vec<WriteItem>,
}

impl RankShard {
    /// Bytes of the values: the size of the rank's file without its header.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| size_of_val(item.values.as_slice()) as u64).sum()
    }
}

/// A rank's report on its file to the rank that publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteResult {
    /// The save that it belongs to.
    pub staging: StagingDir,
    /// The file.
    pub file: FileMetadata,
}

/// Checks that `bytes` more fit into the storage, if its free space is known.
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
/// The same shard gives the same bytes. The result goes to the rank that calls [`publish`](crate::publish). Whether there is space for
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
    write_file(storage, staging, (rank, rank_file(rank)), shard, |_| false)
}

/// The bytes of a file that is to be written.
pub(super) struct FileParts<'a> {
    pub header: &'a [u8],
    pub items: &'a [&'a WriteItem],
    /// How many there are.
    pub bytes: u64,
}

impl<'a> FileParts<'a> {
    /// All in order, in parts of at most this many bytes but for the header.
    pub fn of(&self, most: usize) -> impl Iterator<Item = &'a [u8]> {
        let values = self
            .items
            .iter()
            .flat_map(move |item| bytemuck::cast_slice::<f32, u8>(&item.values).chunks(most));
        once(self.header).chain(values)
    }
}

/// Writes a file of a rank, as [`write_shard`] does, unless `links` has put these bytes into the save already.
pub(super) fn write_file(
    storage: &dyn Storage,
    staging: &StagingDir,
    (rank, name): (usize, String),
    shard: &RankShard,
    links: impl FnOnce(&FileParts<'_>) -> bool,
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
    let parts = FileParts { header: &header, items: &items, bytes };
    let is_linked = links(&parts);
    if !is_linked {
        check_space(storage, bytes)?;
    }

    let write = || {
        if is_linked {
            return Ok(());
        }
        let mut writer = storage.create(&storage.staging_folder(staging), &name, bytes)?;
        parts.of(PART).try_for_each(|part| writer.write(part))?;
        writer.finish()
    };
    let (written, hashes) = std::thread::scope(|scope| {
        let hashes = scope.spawn(|| {
            let mut hasher = FileHasher::default();
            parts.of(PART).for_each(|part| hasher.update(part));
            hasher.finish()
        });
        (write(), hashes.join())
    });
    if let Err(error) = written {
        // The caller gets this failure, even if cleaning up fails, too.
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
