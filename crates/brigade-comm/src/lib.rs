//! Process groups, collectives over host memory, and the transports below them, for distributed training. This crate
//! knows nothing about tensors.
//!
//! A *world* is a fixed set of ranks: the threads of one process ([`threads`]) or processes on one or more
//! hosts ([`join()`]). Ranks communicate through [`Group`]s: the group of all ranks, and the groups that [`Group::split`]
//! makes from it.
//!
//! # Invariants
//! - **One order of addition.** A reduction adds, per element, the contributions of ranks 0..n *pairwise* in rank
//!   order: for strides s = 1, 2, 4, …: `x[i] += x[i + s]` for every i that is a multiple of 2s with i + s < n; the
//!   result is `x[0]`. Three ranks give `(g0 + g1) + g2`, four give `(g0 + g1) + (g2 + g3)`. If every rank has an equal,
//!   contiguous, power-of-two share of the micro-batches, the tree over ranks on top of the same tree over each rank's
//!   micro-batches is the same tree for any number of ranks, so 1 rank × 4 micro-batches, 2 × 2 and 4 × 1 agree to the
//!   bit. Adding from left to right cannot do that. `bf16` and `f16` are added in `f32` through the whole tree and
//!   rounded once, at its end.
//! - **Transports make no difference.** Threads, shared memory, TCP and any mixture run the same schedule over the same
//!   byte streams, and the results have the same bits.
//! - **Operations of one group run in call order**, and every rank must call them in the same order. Point-to-point
//!   transfers are ordered per pair and direction, and never wait for collectives.
//! - **Data in flight stays in the cache.** Two ranks on one host have at most 256 KiB in flight in each direction of a
//!   collective whose directions carry the same amount: shared memory by the size of its ring, TCP because each end sends
//!   at most that much more than it has received. Between hosts, TCP's own windows decide.
//! - **Every wait has a deadline, and nothing is taken on trust**: every operation starts with a header from every
//!   member that sends to this rank (protocol version, group, sequence, operation, type, size). A difference is an error on
//!   all ranks.
//! - **A byte crosses the network once per host.** Ranks learn at the rendezvous which [host and NUMA node](Locality) each of them
//!   is on. If every host has the same power of two of consecutive ranks, or a multiple, collectives run among as many inside hosts first and last, and
//!   between hosts in between ([`Algorithm`]); the bits are the same. [`Stats::between_hosts`] counts what crosses.
//! - **A pair of ranks connects when it first communicates**, between hosts by the interfaces that [`Join::interfaces`] chooses. In groups of more than 32 ranks, a collective runs along the
//!   rows and columns of a grid if the size allows it, so that few pairs connect; the bits are the same. Rings shrink as
//!   groups grow. [`MAX_WORLD_SIZE`] applies to every kind of world.
//! - **The first failure is final.** It fails the world on every rank: operations in flight and later ones return it at
//!   once. A dead process is noticed by its closed control connection, a lost host by the bytes that it no longer
//!   acknowledges.
//! - **Stalls are traced to their cause.** Before an operation times out, every rank is asked what it is waiting for. The
//!   error first names the rank that holds up all others: one that does not answer, or one that is not in any operation.
//! - **What a rank does is recorded**, see [`flight`]; a rank's record outlives its world.
//! - **Nothing is left behind.** Shared memory is an anonymous file without a name in any file system.
//! - **Bytes from the network are not trusted.** A peer proves that it knows the [`AuthToken`] before anything else is read
//!   from it, and lengths are checked ([`MAX_FRAME_BYTES`], [`MAX_WORLD_SIZE`], the limit of a receive of unknown size)
//!   before memory is allocated. Traffic between hosts is encrypted and authenticated ([`Encryption`]), with keys for each
//!   connection that not even the token reveals later: nobody on the network can read it, and changing, repeating, reordering or
//!   dropping any of it ends the world. The same holds for all messages other than operations, everywhere.
//!
//! # Layout, from the bottom up
//! - `op`: algorithms, element types, calls and their headers, the arithmetic of reductions, and the plans that say which bytes each rank
//!   sends to which.
//! - `link`: bytes between two ranks, through shared memory or TCP.
//! - [`flight`]: the flight recorder, and what its records say about a failure.
//! - `progress`: operations in flight, and the engine that drives them.
//! - `group`: what a rank calls, and worlds of threads.
//! - `join`: worlds of processes. `wire` has the messages, `control` the control plane, `network` the connections behind
//!   links, `rendezvous` how ranks find each other.
//! - `process_group`: the trait that an engine implements, and its operations in flight.
//! - [`engine`]: building blocks for engines in other crates.
//! - `memory`: a second engine, for threads that exchange buffers in memory.

#[cfg(target_endian = "big")]
compile_error!("payloads travel in little-endian order as they lie in memory");

pub mod engine;
mod error;
mod fault;
pub mod flight;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod join;
mod limits;
mod link;
mod locality;
mod memory;
mod op;
mod open_files;
mod process_group;
mod progress;
mod sync;
mod timeouts;
mod transport;

pub use error::{Diagnosis, Error, StalledRank};
pub use flight::FlightRecorder;
pub use group::handle::Group;
pub use group::threads::threads;
pub use join::{AuthToken, Channel, ChannelError, ConnectionListener, Join, World, host_identity, join};
pub use limits::{MAX_FRAME_BYTES, MAX_WORLD_SIZE, allowed_world_size};
pub use locality::Locality;
pub use memory::{MemoryGroup, in_memory};
pub use op::algorithm::{Algorithm, AlgorithmRow};
pub use op::buffer::HostBuffer;
pub use op::call::{Call, OpType};
pub use op::dtype::{DType, Element, ReduceOp};
pub use op::header::PROTOCOL_VERSION;
pub use op::stats::{Count, Stats};
pub use open_files::{RAISE_OPEN_FILES, open_files_of_a_rank, raise_open_files, ranks_within_open_files};
pub use process_group::{Driver, OpArgs, OpBuffer, ProcessGroup, Work};
pub use timeouts::Timeouts;
pub use transport::{Encryption, Transport};

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
