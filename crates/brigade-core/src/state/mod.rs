//! The state of training, saved and restored, and whole tensors on one rank.

mod collect;
mod frozen;
mod replica;
mod saved;
mod snapshot;

pub use saved::{StateReader, saved_workers};
pub use snapshot::Snapshot;
