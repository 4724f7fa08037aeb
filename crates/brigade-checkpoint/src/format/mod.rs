//! What the files of a checkpoint look like: names, manifest, headers of safetensors files, checksums.

pub(crate) mod checksums;
pub(crate) mod header;
pub(crate) mod manifest;
pub(crate) mod names;
pub(crate) mod slot_index;
pub(crate) mod unit;
pub(crate) mod validate;
