//! A process group over MPI.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use brigade_comm::engine::{Counters, agree_on_split, owned};
use brigade_comm::flight::ExternalRecorder;
use brigade_comm::{Call, DType, Error, Group, OpArgs, OpBuffer, OpType, ProcessGroup, Result, Stats};
use brigade_random::keyed_bytes;

use crate::handle::Handle;
use crate::library::Communicator;
use crate::membership::{Membership, Shared};
use crate::operation::collective::Collective;
use crate::operation::transfer::Transfer;
use crate::order::Order;
use crate::progress::Command;

/// One rank's membership in a group whose operations are MPI's. Clones are handles of the same membership. It dereferences to
/// [`ProcessGroup`], whose operations it has.
///
/// Sums are made in the [`Order`] that the world was given. Bytes are counted as for every engine, by what every algorithm has to
/// send; what MPI's algorithms send beyond is not known. Ranks compare their calls before each collective, by a small
/// all-reduce, and with each message. A rank that leaves is not noticed but by the deadline.
#[derive(Clone)]
pub struct MpiGroup(Arc<Member>);

struct Member {
    shared: Arc<Shared>,
    handle: Handle,
    /// How often the group has been split. Held while it is, so that splits by several threads do not mix.
    splits: Mutex<u64>,
    collectives: ExternalRecorder,
    /// By sender and receiver.
    transfers: Mutex<HashMap<[usize; 2], Arc<ExternalRecorder>>>,
}

impl fmt::Debug for MpiGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MpiGroup(\"{}\", rank {} of {})", self.name(), self.rank(), self.size())
    }
}

impl Deref for MpiGroup {
    type Target = dyn ProcessGroup;

    fn deref(&self) -> &Self::Target {
        self
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MpiGroup {
    /// The group of all ranks.
    pub(crate) fn world(
        handle: Handle,
        comm: Communicator,
        number: u64,
        control: &Group,
        order: Order,
    ) -> Self {
        let membership = Membership {
            comm,
            number,
            name: control.name().into(),
            rank: control.rank(),
            members: (0..control.size()).collect(),
            order,
        };
        Self::new(handle, control.clone(), membership)
    }

    fn new(handle: Handle, control: Group, membership: Membership) -> Self {
        let Membership { name, number, members, .. } = &membership;
        let collectives = control.external_recorder(&format!("{name}, MPI"), *number, members);
        let shared = Arc::new(Shared { membership, control, counters: Counters::default() });
        Self(Arc::new(Member {
            shared,
            handle,
            splits: Mutex::new(0),
            collectives,
            transfers: Mutex::default(),
        }))
    }

    fn refuse(&self, operation: OpType, reason: String) -> Error {
        let Shared { membership, control, .. } = &*self.0.shared;
        let (rank, group) = (membership.world_rank(), membership.name.clone());
        let error = Error::InvalidArgument { rank, group, operation, reason };
        control.fail(error.clone());
        error
    }

    /// The thread that would run the operation is gone.
    fn ended(&self, call: Call) -> Error {
        let Shared { membership, control, .. } = &*self.0.shared;
        let error = Error::Library {
            group: membership.name.clone(),
            rank: membership.world_rank(),
            library: "MPI",
            call: Box::new(call),
            reason: "this process has ended its use of MPI".into(),
        };
        control.fail(error.clone());
        error
    }

    /// The recorder of transfers with a peer, in one direction.
    fn recorder(&self, peer: usize, receives: bool) -> Arc<ExternalRecorder> {
        let Shared { membership: Membership { name, number, rank, members, .. }, control, .. } =
            &*self.0.shared;
        let pair = if receives { [peer, *rank] } else { [*rank, peer] };
        let mut recorders = lock(&self.0.transfers);
        let make = || {
            let name = format!("{name}, MPI, {} to {}", pair[0], pair[1]);
            let pair = pair.map(|member| members[member]);
            Arc::new(control.external_recorder(&name, *number, &pair))
        };
        recorders.entry(pair).or_insert_with(make).clone()
    }
}

impl ProcessGroup for MpiGroup {
    fn rank(&self) -> usize {
        self.0.shared.membership.rank
    }

    fn size(&self) -> usize {
        self.0.shared.membership.size()
    }

    fn name(&self) -> &str {
        &self.0.shared.membership.name
    }

    fn spans_hosts(&self) -> bool {
        let Shared { membership: Membership { members, .. }, control, .. } = &*self.0.shared;
        let host = |member: usize| control.locality(member).host;
        members.iter().any(|member| host(*member) != host(members[0]))
    }

    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>) {
        if let Some(error) = self.failure() {
            return buffer.complete(Err(error));
        }
        let shared = &self.0.shared;
        let Membership { rank, members, .. } = &shared.membership;
        let call = match args.call(buffer.size(), *rank, members) {
            Ok(call) => call,
            Err(reason) => return buffer.complete(Err(self.refuse(args.op_type, reason))),
        };
        if members.len() == 1 {
            shared.counters.add(call.operation, 0);
            return buffer.complete(Ok(()));
        }
        let command = match args.peer {
            Some(peer) => {
                let recorder = self.recorder(peer, call.operation.is_receive());
                let flight = recorder.begin(call.operation, call.bytes, call.dtype);
                Command::Transfer(shared.clone(), peer, Transfer::new(call, peer, buffer, flight))
            }
            None => {
                let flight = self.0.collectives.begin(call.operation, call.bytes, call.dtype);
                let root = args.root.unwrap_or(0);
                let collective = Collective::new(call, root, &shared.membership, buffer, flight);
                Command::Collective(shared.clone(), collective)
            }
        };
        if let Some(buffer) = self.0.handle.start(command) {
            buffer.complete(Err(self.ended(call)));
        }
    }

    fn barrier(&self) -> Result<()> {
        let (buffer, work) = owned(Vec::<u8>::new());
        self.start(OpArgs::new(OpType::Barrier, DType::U8), buffer);
        work.wait().map(drop)
    }

    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>> {
        let mut splits = lock(&self.0.splits);
        let Shared { membership, control, .. } = &*self.0.shared;
        let chosen = agree_on_split(self, &membership.members, name, color, key)?;
        let refuse = |reason| self.refuse(OpType::AllGather, reason);
        let chosen = chosen.map_err(refuse)?;
        let number = |value: u32, what: &str| {
            let most = i32::MAX;
            let reason = || format!("{what} {value} is given for a split, but MPI takes 0 to {most}");
            i32::try_from(value).map_err(|_| refuse(reason()))
        };
        let (mpi_color, mpi_key) = (number(color, "color")?, number(key, "key")?);
        let comm = self.0.handle.split(membership.comm, mpi_color, mpi_key, control).map_err(|error| {
            // Another rank's failure comes first.
            self.failure().unwrap_or_else(|| refuse(format!("a split into \"{name}\": {error}")))
        })?;
        let seed = keyed_bytes(membership.number, &splits.to_le_bytes());
        *splits += 1;
        let membership = Membership {
            comm,
            number: keyed_bytes(seed, &color.to_le_bytes()),
            name: name.into(),
            rank: chosen.iter().take_while(|member| **member != membership.rank).count(),
            members: chosen.iter().map(|member| membership.members[*member]).collect(),
            order: membership.order,
        };
        Ok(Arc::new(Self::new(self.0.handle.clone(), control.clone(), membership)))
    }

    fn stats(&self) -> Stats {
        self.0.shared.counters.read()
    }

    fn op_timeout(&self) -> Duration {
        self.0.shared.control.op_timeout()
    }

    fn failure(&self) -> Option<Error> {
        self.0.shared.control.failure()
    }

    fn abort(&self, reason: &str) {
        self.0.shared.control.abort(reason);
    }
}
