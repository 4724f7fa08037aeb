//! The thread that makes all calls of MPI: it drives what is in flight, and asks for no support for threads but that.

mod group_ops;

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use crate::membership::Shared;
use crate::operation::collective::Collective;
use group_ops::GroupOps;

use crate::library::{self, Communicator};
use crate::operation::transfer::Transfer;

/// How long it sleeps between two checks of operations that nobody waits for yet: the cores are needed for computing.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// What other threads ask of it.
pub(crate) enum Command {
    /// A split of a communicator, which all its ranks make.
    Split {
        comm: Communicator,
        color: i32,
        key: i32,
        reply: Sender<library::Result<Communicator>>,
    },
    /// Rank 0's bytes for all.
    Share {
        comm: Communicator,
        bytes: Vec<u8>,
        reply: Sender<library::Result<Vec<u8>>>,
    },
    Collective(Arc<Shared>, Collective),
    /// With another rank of the group.
    Transfer(Arc<Shared>, usize, Transfer),
    /// The end, after what is in flight.
    Finalize(Sender<library::Result<()>>),
}

/// The thread's operations, by the number of their group.
#[derive(Default)]
pub(crate) struct Progress {
    groups: BTreeMap<u64, GroupOps>,
    finalize: Option<Sender<library::Result<()>>>,
}

impl Progress {
    /// Works until the end of MPI, or until nobody is there who could ask for something.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        let mut progress = true;
        loop {
            let is_idle = self.groups.values().all(GroupOps::is_idle);
            if is_idle && let Some(reply) = self.finalize.take() {
                // Who asked may have given up.
                let _ = reply.send(library::finalize());
                return;
            }
            let is_awaited = || self.groups.values().any(GroupOps::is_awaited);
            let next = match is_idle {
                true => commands.recv().map_err(|_| TryRecvError::Disconnected),
                false if progress => commands.try_recv(),
                false if is_awaited() => {
                    std::thread::yield_now();
                    commands.try_recv()
                }
                false => commands.recv_timeout(POLL_INTERVAL).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                }),
            };
            match next {
                Ok(command) => self.take(command),
                Err(TryRecvError::Disconnected) if is_idle => return,
                Err(_) => {}
            }
            progress = false;
            for group in self.groups.values_mut().filter(|group| !group.is_idle()) {
                match group.failure() {
                    Some(error) => group.end(&error),
                    None => progress |= group.advance(),
                }
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Split { comm, color, key, reply } => {
                // Who asked may have given up.
                let _ = reply.send(comm.split(color, key));
            }
            Command::Share { comm, bytes, reply } => {
                let _ = reply.send(share(comm, bytes));
            }
            Command::Collective(group, collective) => self.group(group).push_collective(collective),
            Command::Transfer(group, peer, transfer) => self.group(group).push_transfer(peer, transfer),
            Command::Finalize(reply) => self.finalize = Some(reply),
        }
    }

    fn group(&mut self, group: Arc<Shared>) -> &mut GroupOps {
        self.groups.entry(group.membership.number).or_insert_with(|| GroupOps::new(group))
    }
}

fn share(comm: Communicator, bytes: Vec<u8>) -> library::Result<Vec<u8>> {
    // Not freed while MPI may use it.
    let mut bytes = ManuallyDrop::new(bytes);
    // SAFETY: nobody else uses the memory, which is never freed where the request does not come to its end.
    let mut request = unsafe { comm.broadcast(bytes.as_mut_ptr(), bytes.len(), 0) }?;
    while !request.is_complete()? {
        std::thread::yield_now();
    }
    Ok(ManuallyDrop::into_inner(bytes))
}
