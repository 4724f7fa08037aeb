//! What asks the thread that calls MPI.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use brigade_comm::{Group, OpBuffer, ProcessGroup};

use crate::error::Error;
use crate::library::Communicator;
use crate::progress::Command;

/// How often it asks whether the world has failed.
const LOOK: Duration = Duration::from_millis(100);

/// What groups ask the thread by.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    commands: Sender<Command>,
    timeout: Duration,
}

impl Handle {
    /// `timeout` bounds the wait for new groups.
    pub(crate) fn new(commands: Sender<Command>, timeout: Duration) -> Self {
        Self { commands, timeout }
    }

    /// Starts an operation. Gives its buffer back if nobody is there who would run it.
    pub(crate) fn start(&self, command: Command) -> Option<Box<dyn OpBuffer>> {
        match self.commands.send(command).err()?.0 {
            Command::Collective(_, collective) => Some(collective.end().0),
            Command::Transfer(_, _, transfer) => Some(transfer.end().0),
            Command::Split { .. } | Command::Share { .. } | Command::Finalize(_) => None,
        }
    }

    /// The processes that give the same color, ordered by key. All ranks of the communicator call it. MPI does not return while one
    /// is missing, but the wait ends when the world has failed.
    pub(crate) fn split(
        &self,
        comm: Communicator,
        color: i32,
        key: i32,
        control: &Group,
    ) -> Result<Communicator, Error> {
        let (reply, made) = channel();
        ask(&self.commands, Command::Split { comm, color, key, reply })?;
        let until = Instant::now() + self.timeout;
        loop {
            match answer("MPI_Comm_split", &made, LOOK.min(self.timeout)) {
                Err(Error::Late { .. }) if Instant::now() < until && control.failure().is_none() => {}
                Err(Error::Late { call, .. }) => return Err(Error::Late { call, waited: self.timeout }),
                answer => return Ok(answer??),
            }
        }
    }
}

/// Asks the thread for something.
pub(crate) fn ask(commands: &Sender<Command>, command: Command) -> Result<(), Error> {
    let ended = |_| Error::Thread { reason: "it has ended".into() };
    commands.send(command).map_err(ended)
}

/// Waits for the thread's answer.
pub(crate) fn answer<T>(call: &'static str, reply: &Receiver<T>, timeout: Duration) -> Result<T, Error> {
    reply.recv_timeout(timeout).map_err(|error| match error {
        RecvTimeoutError::Timeout => Error::Late { call, waited: timeout },
        RecvTimeoutError::Disconnected => Error::Thread { reason: format!("it ended in {call}") },
    })
}
