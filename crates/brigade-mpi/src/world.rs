//! This process's use of MPI.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use brigade_comm::{Group, ProcessGroup};

use crate::Order;
use crate::error::Error;
use crate::group::MpiGroup;
use crate::handle::{Handle, answer, ask};
use crate::library::{self, Communicator, LEVELS};
use crate::progress::{Command, Progress};

/// The least support for threads: one thread makes all calls, beside others that make none.
const FUNNELED: usize = 1;

/// This process's use of MPI, from [`init`](Self::init) to [`finalize`](Self::finalize). Without the latter, the process ends as one
/// that has failed: `mpirun` then ends all others.
#[derive(Debug)]
pub struct Mpi {
    commands: Sender<Command>,
    comm: Communicator,
    rank: usize,
    size: usize,
    version: String,
    init_timeout: Duration,
    /// How many groups have been made of all ranks.
    groups: AtomicU64,
}

impl Mpi {
    /// Initialises MPI, which waits for all processes that `mpirun` has started. `timeout` bounds this wait, and later ones for new
    /// groups.
    ///
    /// # Errors
    /// If MPI cannot be used, or not all processes come in time.
    pub fn init(timeout: Duration) -> Result<Self, Error> {
        let (commands, receiver) = channel();
        let (reply, ready) = channel();
        let run = move || match begin() {
            Ok(begun) => {
                // Who waits may have given up.
                let _ = reply.send(Ok(begun));
                Progress::default().run(&receiver);
            }
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("brigade-mpi".into()).spawn(run);
        thread.map_err(|error| Error::Thread { reason: error.to_string() })?;
        let (comm, rank, size) = answer("MPI_Init_thread", &ready, timeout)??;
        Ok(Self {
            commands,
            comm,
            rank,
            size,
            version: library::version(),
            init_timeout: timeout,
            groups: AtomicU64::new(0),
        })
    }

    /// The library's name and version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// This process's rank for MPI.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes for MPI.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Checks that a launch environment counts the processes as MPI does.
    ///
    /// # Errors
    /// [`Error::World`] if not: the processes were started by another MPI, or by no MPI.
    pub fn check_rank(&self, rank: usize, size: usize) -> Result<(), Error> {
        let (mpi_rank, mpi_size) = (self.rank, self.size);
        if (mpi_rank, mpi_size) == (rank, size) {
            return Ok(());
        }
        Err(Error::World { rank, size, mpi_rank, mpi_size, version: self.version.clone() })
    }

    /// Gives rank 0's bytes to all, which call it together with as many bytes each: what they need to know before they can join a world.
    ///
    /// # Errors
    /// If MPI fails, or not all ranks call it in time.
    pub fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        let (reply, shared) = channel();
        ask(&self.commands, Command::Share { comm: self.comm, bytes, reply })?;
        Ok(answer("MPI_Ibcast", &shared, self.init_timeout)??)
    }

    /// A new group of all ranks over MPI, which they make together. `control` is the same group over a [joined](brigade_comm::join()) world, which stays
    /// the way for failures, deadlines, and questions who holds up whom: a failure of either is one of both.
    ///
    /// # Errors
    /// [`Error::World`] if the two have other ranks; if MPI fails, or not all ranks call it in time.
    pub fn group(&self, control: &Group, order: Order) -> Result<MpiGroup, Error> {
        self.check_rank(control.rank(), control.size())?;
        let handle = Handle::new(self.commands.clone(), self.init_timeout);
        let comm = handle.split(self.comm, 0, 0, control)?;
        let number = self.groups.fetch_add(1, Relaxed);
        Ok(MpiGroup::world(handle, comm, number, control, order))
    }

    /// Ends the use of MPI, after all that is in flight. Every process calls it.
    ///
    /// # Errors
    /// If MPI fails, or not all processes call it within `timeout`.
    pub fn finalize(&self, timeout: Duration) -> Result<(), Error> {
        let (reply, done) = channel();
        ask(&self.commands, Command::Finalize(reply))?;
        Ok(answer("MPI_Finalize", &done, timeout)??)
    }
}

/// Initialises MPI on this thread.
fn begin() -> Result<(Communicator, usize, usize), Error> {
    if library::is_initialized()? {
        return Err(Error::InUse);
    }
    let level = library::init()?;
    if level < FUNNELED {
        return Err(Error::Threads { version: library::version(), level: LEVELS[level] });
    }
    Ok(Communicator::world()?)
}
