//! The control plane: one connection between rank 0 and every other rank, open from the rendezvous to the end.
//!
//! It carries the news of the first failure to everybody, and the question who waits for whom. A connection that closes
//! before its rank is done means that the rank is dead.

mod connection;
mod status_query;
pub(super) mod thread;
