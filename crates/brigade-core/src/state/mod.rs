//! The state of training, saved and restored, and whole tensors on one rank.

mod collect;
mod snapshot;

pub use snapshot::{Snapshot, StateReader};
