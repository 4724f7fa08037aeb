//! The parsers of files, for a fuzz runner: whatever the bytes, they neither panic nor allocate beyond their length.

use crate::format::header::{self, PREFIX};
use crate::format::manifest::Manifest;
use crate::format::names::MANIFEST;
use crate::format::slot_index::SlotIndex;

/// Parses a manifest.
pub fn manifest(bytes: &[u8]) {
    if let Ok(manifest) = Manifest::parse(bytes, MANIFEST) {
        let _ = SlotIndex::of(&manifest);
    }
}

/// Parses a file's header, given the whole file.
pub fn safetensors_header(bytes: &[u8]) {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return };
    if let Ok(length) = header::length(*prefix, bytes.len() as u64) {
        let (json, data) = rest.split_at(length);
        let _ = header::parse(json, data.len() as u64);
    }
}
