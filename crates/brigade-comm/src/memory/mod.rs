//! A process group in memory: its ranks are threads of one process, and no bytes pass through streams, sockets or
//! descriptors.
//!
//! Every rank hands its buffer over. The last rank to call a collective finds all buffers there, and computes the result in
//! them on its own thread, with the arithmetic that the other engine uses; a transfer is copied by the rank that comes
//! second. There is no thread for progress: whoever waits looks at the deadlines.
//!
//! `state` holds what has been handed over, `shared` is what the ranks share, `execute` moves the bytes.

mod execute;
mod queue;
mod shared;
mod state;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::Result;
use crate::error::Error;
use crate::op::call::OpType;
use crate::op::dtype::DType;
use crate::op::stats::Stats;
use crate::process_group::split::{chosen, group_number, row};
use crate::process_group::work::{Driver, OpBuffer, OwnedBuffer};
use crate::process_group::{OpArgs, ProcessGroup};
use crate::sync::lock;
use crate::timeouts::Timeouts;
use shared::SharedState;

/// Makes a world of `n` ranks for the threads of one process, which exchange buffers in memory: element r is rank r's group.
/// Of the timeouts, `step` applies.
///
/// A rank whose last handle of a group is dropped by a panic fails the world; one that is dropped otherwise has left,
/// which is an error only for ranks that still wait for it.
pub fn in_memory(n: usize, timeouts: Timeouts) -> Vec<MemoryGroup> {
    let world = Arc::new(SharedState::new(timeouts));
    (0..n).map(|rank| MemoryGroup::new(&world, 0, "world", rank, (0..n).collect())).collect()
}

/// One rank's membership in a group whose ranks are threads that exchange buffers in memory. Clones are handles of the same
/// membership. It dereferences to [`ProcessGroup`], whose operations it has.
#[derive(Clone)]
pub struct MemoryGroup(Arc<Member>);

struct Member {
    side: Arc<Side>,
    /// How often the group has been split. Held while it is, so that splits by several threads do not mix.
    splits: Mutex<u64>,
}

/// What is needed to act on behalf of a rank of a group.
struct Side {
    world: Arc<SharedState>,
    group: u64,
    name: String,
    rank: usize,
    /// The world ranks of the members.
    members: Vec<usize>,
}

impl fmt::Debug for MemoryGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryGroup(\"{}\", rank {} of {})", self.name(), self.rank(), self.size())
    }
}

impl Deref for MemoryGroup {
    type Target = dyn ProcessGroup;

    fn deref(&self) -> &Self::Target {
        self
    }
}

impl MemoryGroup {
    fn new(world: &Arc<SharedState>, group: u64, name: &str, rank: usize, members: Vec<usize>) -> Self {
        world.join_group(group, name, &members);
        let side = Side { world: world.clone(), group, name: name.into(), rank, members };
        Self(Arc::new(Member { side: Arc::new(side), splits: Mutex::new(0) }))
    }

    fn refuse(&self, operation: OpType, reason: String) -> Error {
        let Side { world, name, .. } = &*self.0.side;
        let rank = self.0.side.world_rank();
        let error = Error::InvalidArgument { rank, group: name.clone(), operation, reason };
        world.fail(rank, error.clone());
        error
    }
}

impl Side {
    fn world_rank(&self) -> usize {
        self.members[self.rank]
    }
}

impl Driver for Side {
    fn poll(&self) -> Duration {
        self.world.poll(self.group, self.rank, self.world_rank())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let Side { world, group, name, rank, .. } = &*self.side;
        if std::thread::panicking() {
            let rank = self.side.world_rank();
            let reason = format!("a thread that held group \"{name}\" panicked");
            world.fail(rank, Error::Aborted { rank, reason });
        }
        world.leave_group(*group, *rank);
    }
}

impl ProcessGroup for MemoryGroup {
    fn rank(&self) -> usize {
        self.0.side.rank
    }

    fn size(&self) -> usize {
        self.0.side.members.len()
    }

    fn name(&self) -> &str {
        &self.0.side.name
    }

    fn start(&self, args: OpArgs, buffer: Box<dyn OpBuffer>) {
        let Side { world, group, rank, members, .. } = &*self.0.side;
        if let Err(error) = world.check(self.0.side.world_rank()) {
            return buffer.complete(Err(error));
        }
        match args.call(buffer.size(), *rank, members) {
            Ok(call) => world.post(*group, *rank, args.peer, call, buffer),
            Err(reason) => buffer.complete(Err(self.refuse(args.op_type, reason))),
        }
    }

    fn driver(&self) -> Option<Arc<dyn Driver>> {
        Some(self.0.side.clone())
    }

    fn barrier(&self) -> Result<()> {
        let (buffer, work) = OwnedBuffer::sized(Vec::<u8>::new());
        self.start(OpArgs::new(OpType::Barrier, DType::U8), buffer);
        work.driven_by(self.driver()).wait().map(drop)
    }

    fn split(&self, name: &str, color: u32, key: u32) -> Result<Arc<dyn ProcessGroup>> {
        let mut splits = lock(&self.0.splits);
        let Side { world, group, rank, members, .. } = &*self.0.side;
        let mut rows = vec![0; 3 * members.len()];
        rows[3 * rank..3 * (rank + 1)].copy_from_slice(&row(name, color, key));
        let rows = self.all_gather(rows, DType::I64).wait()?;
        let chosen = chosen(rows.as_chunks().0, *rank, members, name);
        let chosen = chosen.map_err(|reason| self.refuse(OpType::AllGather, reason))?;
        let number = group_number(*group, *splits, color);
        *splits += 1;
        let place = chosen.iter().take_while(|member| *member != rank).count();
        let members = chosen.iter().map(|member| members[*member]).collect();
        Ok(Arc::new(Self::new(world, number, name, place, members)))
    }

    fn stats(&self) -> Stats {
        self.0.side.world.stats(self.0.side.group, self.0.side.rank)
    }

    fn op_timeout(&self) -> Duration {
        self.0.side.world.op_timeout()
    }

    fn failure(&self) -> Option<Error> {
        self.0.side.world.check(self.0.side.world_rank()).err()
    }

    fn abort(&self, reason: &str) {
        let rank = self.0.side.world_rank();
        self.0.side.world.fail(rank, Error::Aborted { rank, reason: reason.into() });
    }
}
