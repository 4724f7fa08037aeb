//! `brigade train` where all goes well, and input that it refuses.

mod adapters;
mod auto;
mod backends;
mod chats;
mod classifiers;
mod equality;
mod folders;
#[cfg(feature = "mpi")]
mod mpi;
mod results;
mod shards;
mod tasks;
mod weights;
mod wrong_input;
