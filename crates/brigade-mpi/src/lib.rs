//! Process groups over MPI: the engine that clusters have. Groups are communicators, and tensors go over MPI's own collectives
//! and messages, over InfiniBand, Slingshot or whatever the site's library was tuned for.
//!
//! # Invariants
//! - **One thread calls MPI**, so that `MPI_THREAD_FUNNELED` is enough. Every call that could wait for other ranks is non-blocking
//!   and polled, or is waited for by another thread with a deadline. The thread polls without sleeping while somebody waits for
//!   a result, and every 100 µs otherwise: MPI only makes progress when it is called.
//! - **The control plane is unchanged.** A world of ranks [joins](brigade_comm::join()) as usual, with failures, deadlines, the
//!   flight recorder and the diagnosis of stalled ranks. Errors from MPI (`MPI_ERRORS_RETURN`) fail the world with rank and
//!   operation.
//! - **The order of sums is a choice** ([`Order`]): pairwise with the bits of the other engines, or MPI's own.
//! - **Calls are compared**, before a collective's first byte moves, and with each message.
//! - **Memory that MPI may still use is never freed.** An operation cannot be cancelled: after a failure, buffers in flight stay
//!   where they are until the process ends.
//!
//! Handles differ from library to library, so the calls are in C (`library/calls.c`), compiled by the machine's `mpicc` with the
//! feature `mpi`. Without the feature, everything but a program builds.

mod error;
mod group;
mod handle;
mod library;
mod membership;
mod operation;
mod order;
mod progress;
mod world;

pub use error::Error;
pub use group::MpiGroup;
pub use order::Order;
pub use world::Mpi;
