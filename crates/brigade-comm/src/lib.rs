//! Process groups, host collectives and their transports, for distributed training. Knows nothing of tensors.
//!
//! A *world* is a fixed set of ranks: the threads of one process ([`threads`]) or processes on one or more
//! hosts ([`join`]). Ranks talk through [`Group`]s: the world itself, and what [`Group::split`] makes of it.
//!
//! # Invariants
//! - **One order of addition.** A reduction adds, per element, the contributions of ranks 0..n *pairwise* in rank
//!   order: for strides s = 1, 2, 4, …: `x[i] += x[i + s]` for every i that is a multiple of 2s with i + s < n; the
//!   result is `x[0]`. Three ranks give `(g0 + g1) + g2`, four give `(g0 + g1) + (g2 + g3)`. With equal, contiguous
//!   power-of-two shares of micro-batches per rank, the tree over ranks on top of the same tree over each rank's
//!   micro-batches is one and the same tree whatever the number of ranks, so 1 rank × 4 micro-batches, 2 × 2 and
//!   4 × 1 agree to the bit. Adding from left to right cannot give that. `bf16` and `f16` are added in `f32` through
//!   the whole tree and rounded once, at its end.
//! - **Transports do not show.** Threads, shared memory, TCP and any mixture run the same schedule over the same
//!   byte streams; results are the same bits.
//! - **Operations of one group run in call order** and every rank must call them in the same order. Point-to-point
//!   transfers are ordered per pair and direction and never wait for collectives.
//! - **Nothing waits without a deadline**, and nothing is believed: every operation starts with a header from every
//!   member that it has something from (protocol version, group, sequence, operation, type, size); a difference is an
//!   error on all ranks.
//! - **A pair connects when it first speaks.** In groups of more than 32 a collective goes along the rows and columns of a
//!   grid where the size allows it, so that few pairs do; the bits are the same. Rings shrink as groups grow.
//!   [`MAX_WORLD_SIZE`] holds for every way to start a world.
//! - **The first failure is final.** It poisons the world on every rank; what waits and what is called later
//!   returns it at once. A dead process is noticed by its closed control connection, a lost host by what it no longer
//!   acknowledges.
//! - **Who waits for whom is followed to its end.** Before an operation is given up, every rank is asked what it waits
//!   for. The error names first who holds up all others: a rank that does not answer, or one that is in no operation.
//! - **What a rank does is recorded**, see [`flight`]; a rank's record outlives its world.
//! - **Nothing is left behind.** Shared memory is an anonymous file that never has a name in any file system.
//! - **The wire is not trusted.** Peers prove knowledge of a [`AuthToken`] before anything else is read from them;
//!   lengths are bounded ([`MAX_FRAME_BYTES`], [`MAX_WORLD_SIZE`], the limit of a [`Group::recv_message`]) before
//!   anything is allocated. The data that follows is neither encrypted nor signed: use a network that only the run's
//!   owner can change.
//!
//! # Reading order
//! `dtype`, `reduce` (arithmetic) → `call`, `plan` (what each rank sends to whom) → `stream`, `collective`,
//! `transfer` (one operation in flight) → `link` (bytes between two ranks) → `in_flight`, `engine`, `waiter` (progress) →
//! `failing`, [`flight`] (what goes wrong, and because of whom) → `group` → `join` (rendezvous, control plane).

#[cfg(target_endian = "big")]
compile_error!("payloads travel in little-endian order as they lie in memory");

mod buffer;
mod call;
mod collective;
mod connector;
mod dtype;
mod engine;
mod error;
mod failing;
mod fault;
pub mod flight;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod in_flight;
mod join;
mod link;
mod open_files;
mod plan;
mod reduce;
mod stats;
mod stream;
mod sync;
mod threads;
mod timeouts;
mod transfer;
mod waiter;
mod work;

pub use buffer::HostBuffer;
pub use call::{Call, OpType};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{Diagnosis, Error, StalledRank};
pub use flight::FlightRecorder;
pub use group::Group;
pub use join::{
    AuthToken, Join, MAX_FRAME_BYTES, MAX_WORLD_SIZE, PROTOCOL_VERSION, Transport, World, allowed_world_size,
    host_identity, join,
};
pub use open_files::{RAISE_OPEN_FILES, open_files_of_a_rank, raise_open_files, ranks_within_open_files};
pub use stats::{Count, Stats};
pub use threads::threads;
pub use timeouts::Timeouts;
pub use work::Work;

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
