//! Loading: opening a checkpoint, reading any range of it, verifying it, and listing all checkpoints.

mod checkpoint;
mod chunks;
mod list;
mod load;
mod verify;

pub use checkpoint::{Checkpoint, StoredParameter};
pub use list::{CheckpointSummary, ListedCheckpoint, list};
pub(crate) use load::{find, load};
pub use verify::{Problem, verify};
