//! The manifest: what a checkpoint contains and where, with checksums.

use brigade_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::names::MANIFEST;
use super::unit::UnitMetadata;
use crate::error::{Error, Result};

/// The format's version that this build writes, and the newest that it reads. Version 1 has one file a rank, and version 2 a second one for what training
/// does not change.
pub const FORMAT_VERSION: u32 = 2;

/// Bytes that one checksum of [`FileMetadata::chunks`] covers; the last chunk of a file may be shorter.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Largest manifest, in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// Characters of a crc32c in hexadecimal.
const CRC_DIGITS: usize = 8;

/// The state of training: the part of a manifest that the caller provides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainState {
    /// Batches of the sampler that were consumed; differs from the step if some were skipped.
    pub position: u64,
    /// The mesh that wrote it, such as `pp`, `dp`, `zero`. Loading needs none of it.
    pub mesh: SortedMap<String, u64>,
    /// The run's resolved configuration.
    pub settings: Value,
    /// What must be the same when a run resumes: hashes of data, tokenizer, and the like.
    pub facts: SortedMap<String, String>,
    /// Counters that continue when a run resumes, such as rollbacks.
    pub counters: SortedMap<String, u64>,
    /// The units in the model's order.
    pub units: Vec<UnitMetadata>,
}

/// A checkpoint's description: the content of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// Completed training steps.
    pub step: u64,
    /// When it was published, in seconds since 1970 (UTC).
    pub created: u64,
    /// The state of training.
    pub state: TrainState,
    /// The ranks' files, by rank and name.
    pub files: Vec<FileMetadata>,
}

/// A file of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMetadata {
    /// `rank-00003.safetensors`, or `frozen-00003.safetensors`.
    pub name: String,
    /// The rank that wrote it.
    pub rank: usize,
    /// Size of the file.
    pub bytes: u64,
    /// BLAKE3 of the whole file, 64 hexadecimal digits.
    pub blake3: String,
    /// CRC-32C of each [`CHUNK_BYTES`] of the file, 8 hexadecimal digits each, one after the other.
    pub chunks: String,
    /// The items in the file's order.
    #[serde(rename = "pieces")]
    pub items: Vec<ItemMetadata>,
}

/// Where a contiguous range of a slot is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemMetadata {
    /// The unit.
    pub unit: String,
    /// The slot.
    pub slot: String,
    /// First element in the slot.
    pub start: usize,
    /// Number of elements (4 bytes each, little-endian `f32`).
    pub elements: usize,
    /// Offset of the first byte from the start of the file.
    pub offset: u64,
}

impl FileMetadata {
    /// What files are sorted by in a manifest.
    pub(crate) fn order(&self) -> (usize, &str) {
        (self.rank, &self.name)
    }

    /// Number of chunks.
    pub(crate) fn chunk_count(&self) -> u64 {
        self.bytes.div_ceil(CHUNK_BYTES as u64)
    }

    /// Checksum of a chunk; `None` when there is no such chunk or its digits are not hexadecimal.
    pub(crate) fn chunk_crc(&self, chunk: u64) -> Option<u32> {
        let begin = usize::try_from(chunk).ok()?.checked_mul(CRC_DIGITS)?;
        let digits = self.chunks.as_bytes().get(begin..begin.checked_add(CRC_DIGITS)?)?;
        if !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    /// Whether every chunk has a checksum, and nothing else is there.
    pub(crate) fn has_all_chunks(&self) -> bool {
        self.chunks.len().is_multiple_of(CRC_DIGITS)
            && (self.chunks.len() / CRC_DIGITS) as u64 == self.chunk_count()
            && (0..self.chunk_count()).all(|chunk| self.chunk_crc(chunk).is_some())
    }
}

impl Manifest {
    /// Bytes of all the ranks' files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Reads `bytes` and checks that they describe a complete checkpoint; `file` names them in errors.
    ///
    /// # Errors
    /// [`Error::UnsupportedVersion`] for a newer format, else [`Error::InvalidManifest`] with what is wrong.
    pub fn parse(bytes: &[u8], file: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        let wrong = |message: String| Error::InvalidManifest { file: file.into(), message };
        let Version { version } = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if version > FORMAT_VERSION.into() {
            return Err(Error::UnsupportedVersion {
                file: file.into(),
                found: version,
                supported: FORMAT_VERSION,
            });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        manifest.check().map_err(|error| match error {
            Error::InvalidManifest { message, .. } => wrong(message),
            other => wrong(other.to_string()),
        })?;
        Ok(manifest)
    }
}

/// The content of [`MANIFEST_HASH`].
pub(crate) fn hash_line(manifest: &[u8]) -> String {
    format!("{}  {MANIFEST}\n", blake3::hash(manifest).to_hex())
}
