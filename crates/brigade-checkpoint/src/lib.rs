//! Sharded checkpoints of training state: each rank writes what it owns, and any other mesh reads what it needs.
//!
//! The state is a list of [`Unit`]s: named flat buffers of `f32`, each with several arrays of that length (the slots:
//! parameters, optimizer state) and scalars. A rank writes [`Piece`]s, contiguous ranges of slots. Nothing here knows
//! tensors, meshes or schedules.
//!
//! ```text
//! step-00000050/rank-00000.safetensors   the pieces of rank 0, each a tensor `<unit>/<slot>/<start>` of F32
//! step-00000050/rank-00001.safetensors
//! step-00000050/manifest.json            what is where, with sizes and checksums; written last
//! step-00000050/manifest.blake3          the manifest's checksum, as `b3sum` writes it
//! ```
//!
//! What holds, wherever the checkpoints are kept:
//!
//! - **Visible means whole.** A save is written where no reader looks, flushed to the disk, and becomes visible by one
//!   step of the storage. A process that dies at any instant leaves the old checkpoint or the new one.
//! - **Every element exactly once.** A save whose pieces leave a gap or overlap is not published.
//! - **Nothing is read unchecked.** Each [`CHUNK`] has a checksum of its own, so that a range is checked without reading
//!   the rest. Damage is told with file, chunk and offset.
//! - **Bytes from outside are not trusted.** Sizes are checked against the real files before anything is allocated.
//! - **The same snapshot gives the same files.** Only the manifest tells the time.
//! - **The older goes last.** A checkpoint is removed only when newer ones are whole.
//!
//! ```
//! use brigade_checkpoint::*;
//!
//! # fn main() -> Result<()> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let path = folder.path().to_str().expect("text");
//! let storage = open_storage(path)?;
//! // On every rank, with the same staging: what this rank owns.
//! let staging = Staging::new(50)?;
//! let values = vec![0.5; 6];
//! let piece = Piece { unit: "block.0".into(), slot: PARAMETERS.into(), start: 0, values };
//! let entry = write_rank(&*storage, &staging, 0, &Snapshot { pieces: vec![piece] })?;
//!
//! // On one rank, with the entries of all.
//! let unit = Unit {
//!     name: "block.0".into(),
//!     elements: 6,
//!     trainable: true,
//!     parameters: vec![Parameter { name: "block.0.weight".into(), shape: vec![2, 3], start: 0 }],
//!     slots: vec![PARAMETERS.into()],
//!     scalars: Default::default(),
//! };
//! let state = State { units: vec![unit], ..State::default() };
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

mod check;
mod chunks;
mod cover;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod header;
mod layout;
mod list;
mod manifest;
mod read;
mod storage;
mod unit;
mod verify;
mod write;

pub use error::{Error, Result};
pub use layout::{MANIFEST, MANIFEST_HASH, Staging, rank_file};
pub use list::{Found, Summary, keep, list, remove_after, remove_stale};
pub use manifest::{CHUNK, FileEntry, MANIFEST_LIMIT, Manifest, PieceEntry, RankEntry, State, VERSION};
pub use read::{Checkpoint, StoredParameter};
#[cfg(feature = "object-store")]
pub use storage::ObjectStorage;
pub use storage::{LocalStorage, Published, Sink, Source, Storage, open_storage};
pub use unit::{PARAMETERS, Parameter, Scalar, Unit};
pub use verify::{Problem, verify};
pub use write::{Piece, Snapshot, abandon, publish, write_rank};
