//! Token files: the tokens of a split on disk, and where its documents lie.
//!
//! A split `name` is two files, little-endian throughout:
//!
//! ```text
//! name.bin   offset  0  magic "BRGTOKEN"
//!                    8  u32 version
//!                   12  u32 bytes per token, 2 or 4
//!                   16  u64 number of tokens
//!                   24  u32 vocabulary size; every token is below it
//!                   28  u32 zero
//!                   32  BLAKE3 of the index file
//!                   64  the tokens
//! name.idx   offset  0  magic "BRGINDEX"
//!                    8  u32 version
//!                   12  u32 kind of labels: 0 none, 1 classes, 2 numbers, 3 sets of classes
//!                   16  u64 number of documents D
//!                   24  u64 number of masked ranges R
//!                   32  D + 1 u64: where each document starts, and where the last one ends
//!                    …  R pairs of u64: masked tokens, start and end, ascending and apart
//!                    …  D u64 if there are labels: classes, the bits of f64 numbers, or a bit for each class
//!                    …  32 bytes for each MiB of tokens, the last perhaps shorter: its BLAKE3
//! ```
//!
//! Files are only ever written under a new name, so a map of one stays valid until its last user drops it.

mod read;
mod write;

pub use read::TokenFile;
pub use write::TokenWriter;

use super::example::LabelKind;
use super::mapped::HASH_BYTES;

const TOKENS_MAGIC: &[u8; 8] = b"BRGTOKEN";
const INDEX_MAGIC: &[u8; 8] = b"BRGINDEX";
const TOKENS_HEADER_BYTES: usize = 64;
const INDEX_HEADER_BYTES: usize = 32;

/// The bytes of tokens that have a checksum together.
const BLOCK_BYTES: usize = 1 << 20;

/// The version of both files.
pub(crate) const FORMAT_VERSION: u32 = 3;

/// Bytes per token for a vocabulary: 2 while ids fit in 16 bits, else 4.
fn bytes_per_token(vocabulary_size: usize) -> usize {
    if vocabulary_size <= 1 << 16 { 2 } else { 4 }
}

/// The kind of labels that a number in the index's header stands for; none if it stands for nothing.
fn label_kind(code: u32) -> Option<Option<LabelKind>> {
    let kinds = [LabelKind::Class, LabelKind::Number, LabelKind::Classes].map(Some);
    [None].into_iter().chain(kinds).find(|kind| label_code(*kind) == code)
}

fn label_code(kind: Option<LabelKind>) -> u32 {
    match kind {
        None => 0,
        Some(LabelKind::Class) => 1,
        Some(LabelKind::Number) => 2,
        Some(LabelKind::Classes) => 3,
    }
}

/// The files of split `name` in `folder`: tokens and index.
fn paths(folder: &std::path::Path, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    (folder.join(format!("{name}.bin")), folder.join(format!("{name}.idx")))
}

#[cfg(test)]
mod tests;
