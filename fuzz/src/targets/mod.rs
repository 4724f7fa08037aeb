//! All targets.

mod checkpoint;
mod data;
mod flight;
mod launch;
mod settings;
mod weights;
mod wire;

use crate::target::Target;

/// The targets, in the order in which they run.
pub const ALL: [Target; 16] = [
    wire::FRAME,
    wire::RENDEZVOUS,
    wire::HEADER,
    flight::FLIGHT,
    flight::DIAGNOSIS,
    checkpoint::MANIFEST,
    checkpoint::SAFETENSORS,
    settings::SETTINGS,
    settings::PLAN,
    launch::ENVIRONMENT,
    data::JSONL,
    data::GZIP,
    data::ZSTD,
    data::PARQUET,
    data::TOKENIZER,
    weights::WEIGHTS,
];

/// The target of this name.
pub fn named(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
