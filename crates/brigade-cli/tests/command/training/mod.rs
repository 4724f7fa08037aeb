//! `brigade train` where all goes well, and input that it refuses.

mod auto;
mod backends;
mod classifiers;
mod equality;
mod model_folders;
#[cfg(feature = "mpi")]
mod mpi;
mod results;
mod tasks;
mod wrong_input;
