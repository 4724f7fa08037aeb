//! What groups over MPI do, on ranks that `mpirun` starts. Needs the feature `mpi`, and the `mpirun` of the same MPI.

#![allow(clippy::unwrap_used)]

mod collectives;
mod failures;
mod messages;
mod ranks;
