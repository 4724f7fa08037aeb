//! Sharded checkpoints of training state: each rank writes what it owns, and any other mesh reads what it needs.
//!
//! The state is a list of units ([`UnitMetadata`]): named flat buffers of `f32`, each with several arrays of that length (its
//! slots: parameters, optimizer state) and scalars. A rank writes [`WriteItem`]s, contiguous ranges of slots. This crate knows
//! neither tensors nor meshes nor schedules.
//!
//! ```text
//! step-00000050/rank-00000.safetensors   the items of rank 0, each a tensor `<unit>/<slot>/<start>` of F32
//! step-00000050/rank-00001.safetensors
//! step-00000050/frozen-00000.safetensors those of rank 0's items that training does not change, if there are any
//! step-00000050/manifest.json            what is where, with sizes and checksums; written last
//! step-00000050/manifest.blake3          the manifest's checksum, as `b3sum` writes it
//! ```
//!
//! Invariants, for every kind of storage:
//!
//! - **Visible means complete.** A save is written where no reader looks, flushed to the disk, and made visible by one
//!   storage operation. A process that dies at any instant leaves the old checkpoint or the new one.
//! - **Every element exactly once.** A save whose items leave a gap or overlap is not published.
//! - **Nothing is read unchecked.** Every chunk of [`CHUNK_BYTES`] has its own checksum, so that a range can be checked
//!   without reading the rest. An error names the damaged file, chunk and offset.
//! - **Bytes from outside are not trusted.** Sizes are checked against the real files before anything is allocated.
//! - **The same shard gives the same file.** Only the manifest contains the time.
//! - **What does not change is written once.** Several checkpoints may have one frozen file in common, each under its own name: a hard link in a folder, a copy that the
//!   store makes of an object. Each checkpoint is complete without the others. A file is linked if this process wrote it, or has compared all its bytes
//!   with those that it would have written ([`write_frozen`]); of what becomes damaged on the disk afterwards, all of them have the same.
//! - **Older checkpoints are removed last**, when newer ones are complete.
//! - **A location has one run at a time** if each run takes its lease ([`take_lease`]), which only needs files that can be created once.
//!
//! ```
//! use brigade_checkpoint::*;
//!
//! # fn main() -> Result<()> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().to_str().expect("text");
//! let storage = open_storage(path)?;
//! // On every rank, with the same staging: what this rank owns.
//! let staging = StagingDir::new(50)?;
//! let values = vec![0.5; 6];
//! let item = WriteItem { unit: "block.0".into(), slot: PARAMETERS.into(), start: 0, values };
//! let entry = write_shard(&*storage, &staging, 0, &RankShard { items: vec![item] })?;
//!
//! // On one rank, with the entries of all.
//! let unit = UnitMetadata {
//!     name: "block.0".into(),
//!     elements: 6,
//!     trainable: true,
//!     parameters: vec![ParameterMetadata { name: "block.0.weight".into(), shape: vec![2, 3], start: 0 }],
//!     slots: vec![PARAMETERS.into()],
//!     scalars: Default::default(),
//! };
//! let state = TrainState { units: vec![unit], ..TrainState::default() };
//! publish(&*storage, &staging, state, vec![entry])?;
//!
//! // Later, on any mesh.
//! let checkpoint = Checkpoint::open(storage, 50)?;
//! let mut part = [0.0; 3];
//! checkpoint.read("block.0", PARAMETERS, 2..5, &mut part)?;
//! assert_eq!(part, [0.5; 3]);
//! # Ok(())
//! # }
//! ```

#[cfg(target_endian = "big")]
compile_error!("files hold little-endian numbers, which are written and read as they are in memory");

mod error;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod lease;
mod read;
mod retention;
mod storage;
mod write;

pub use error::{Error, Result};
pub use format::manifest::{
    CHUNK_BYTES, FORMAT_VERSION, FileMetadata, ItemMetadata, MAX_MANIFEST_BYTES, Manifest, TrainState,
};
pub use format::names::{MANIFEST, MANIFEST_HASH, frozen_file, rank_file};
pub use format::unit::{PARAMETERS, ParameterMetadata, Scalar, UnitMetadata};
pub use lease::{
    Holder, Lease, LeaseFound, LeaseLocation, LeaseRecord, lease_location, look_at_lease, newest_lease,
    take_lease,
};
pub use read::{Checkpoint, CheckpointSummary, ListedCheckpoint, Problem, StoredParameter, list, verify};
pub use retention::{keep_latest, remove_after, remove_stale};
#[cfg(feature = "object-store")]
pub use storage::ObjectStorage;
pub use storage::{
    CheckpointDir, LocalStorage, StagingDir, Storage, StorageReader, StorageWriter, open_storage,
};
pub use write::{
    RankShard, WriteItem, WriteResult, abort_save, link_frozen, merge_units, publish, write_frozen,
    write_shard,
};
