//! Why MPI cannot be used.

use std::time::Duration;

use crate::library::Failure;

/// Why MPI cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call failed.
    #[error("MPI failed in {call}: {reason}")]
    Library {
        /// The call.
        call: &'static str,
        /// MPI's own words.
        reason: String,
    },
    /// Something else in this process uses MPI.
    #[error("this program has already initialised MPI; only one part of a program can")]
    InUse,
    /// The library cannot be called from a thread of a program with several.
    #[error(
        "{version} offers {level}, but MPI_THREAD_FUNNELED is needed: use an MPI built with thread support, or \
        comm.collectives (--collectives) = host"
    )]
    Threads {
        /// The library.
        version: String,
        /// What it offers.
        level: &'static str,
    },
    /// MPI counts the processes in another way than the launch environment.
    #[error(
        "this process is rank {rank} of {size}, but rank {mpi_rank} of {mpi_size} for {version}: start the ranks with that MPI's \
        mpirun, mpiexec or srun, as in `mpirun -n 8 brigade train …`, or set comm.collectives (--collectives) = host"
    )]
    World {
        /// The rank by the environment.
        rank: usize,
        /// The number of ranks by the environment.
        size: usize,
        /// The rank by MPI.
        mpi_rank: usize,
        /// The number of ranks by MPI.
        mpi_size: usize,
        /// The library.
        version: String,
    },
    /// A call that waits for all ranks did not return.
    #[error(
        "{call} did not return within {waited:?}: not all ranks called it, or they cannot reach each other over \
        MPI"
    )]
    Late {
        /// The call.
        call: &'static str,
        /// How long it was given.
        waited: Duration,
    },
    /// The thread that calls MPI cannot start, or has ended.
    #[error("the thread that calls MPI is gone: {reason}")]
    Thread {
        /// Why not.
        reason: String,
    },
}

impl From<Failure> for Error {
    fn from(Failure { call, reason }: Failure) -> Self {
        Self::Library { call, reason }
    }
}
