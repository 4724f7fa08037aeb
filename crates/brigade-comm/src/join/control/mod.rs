//! The control plane: one connection between rank 0 and every other rank, open from the rendezvous to the end.
//!
//! It spreads the first failure to all ranks, and collects what each rank waits for. If a connection closes before its rank
//! is done, the rank is dead.

mod connection;
mod status_query;
pub(super) mod thread;
