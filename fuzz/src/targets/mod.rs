//! All targets.

mod checkpoint;
mod flight;
mod launch;
mod rows;
mod settings;
mod tokenizer;
mod weights;
mod wire;

use crate::target::Target;

/// The targets, in the order in which they run.
pub const ALL: [Target; 17] = [
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
    rows::JSONL,
    rows::GZIP,
    rows::ZSTD,
    rows::PARQUET,
    rows::ARROW,
    tokenizer::TOKENIZER,
    weights::WEIGHTS,
];

/// The target of this name.
pub fn named(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
