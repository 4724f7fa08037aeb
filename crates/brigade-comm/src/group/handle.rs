//! Groups of ranks and what they can do together.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use brigade_random::keyed_bytes;

use crate::Result;
use crate::error::{Diagnosis, Error};
use crate::flight::{ExternalRecorder, FlightRecorder};
use crate::locality::Locality;
use crate::op::algorithm::Algorithm;
use crate::op::call::OpType;
use crate::op::dtype::{Element, ReduceOp};
use crate::process_group::ProcessGroup;
use crate::progress::context::{Context, GroupSpec};
use crate::progress::progress_engine::ProgressEngine;

/// An ordered set of ranks that communicate. Clones are handles of the same group.
///
/// Every member calls the same collectives in the same order; the caller must order calls from several threads of one rank.
/// Ranks in arguments count within the group; ranks in errors are those of the world.
///
/// Collectives come in two forms. The first is that of every [`ProcessGroup`], to which a group dereferences: it takes a buffer
/// and gives a [`Work`](crate::Work) handle, and the operation runs on the group's progress thread while the caller computes.
/// The second, `…_in_place`, borrows a slice and returns when the operation is complete: it runs on the caller's thread unless
/// earlier operations are still in flight.
#[derive(Clone)]
pub struct Group(pub(super) Arc<Member>);

/// One rank's membership.
pub(super) struct Member {
    pub(super) progress: Arc<ProgressEngine>,
    /// How often the group has been split. Held while it is, so that splits by several threads do not mix.
    pub(super) splits: Mutex<u64>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(\"{}\", rank {} of {})", self.name(), self.rank(), self.size())
    }
}

impl Deref for Group {
    type Target = dyn ProcessGroup;

    fn deref(&self) -> &Self::Target {
        self
    }
}

impl Group {
    /// The group of all ranks.
    pub(crate) fn world(context: Context, members: Vec<usize>) -> Result<Self> {
        let rank = context.recorder.rank;
        Self::connect(context, GroupSpec { group: 0, name: "world".into(), rank, members })
    }

    pub(super) fn connect(context: Context, spec: GroupSpec) -> Result<Self> {
        let event_fd = context.connector.join_group(spec.group, spec.world_rank())?;
        context.fault.watch(&event_fd);
        let group_index = context.recorder.register(spec.group, &spec.name, &spec.members);
        let progress = Arc::new(ProgressEngine::new(spec, context, group_index, event_fd));
        Ok(Self(Arc::new(Member { progress, splits: Mutex::new(0) })))
    }

    /// The rank in the world of the group's rank `rank`.
    ///
    /// # Panics
    /// If `rank` is not below [`size`](ProcessGroup::size).
    pub fn global_rank(&self, rank: usize) -> usize {
        self.spec().members[rank]
    }

    /// Where the group's rank `rank` runs.
    ///
    /// # Panics
    /// If `rank` is not below [`size`](ProcessGroup::size).
    pub fn locality(&self, rank: usize) -> Locality {
        self.0.progress.context.localities[self.global_rank(rank)]
    }

    /// The algorithm of the group's collectives: what [`Algorithm::Auto`] stands for.
    pub fn algorithm(&self) -> Algorithm {
        self.0.progress.layout.algorithm()
    }

    /// As `all_reduce`, on a slice, blocking.
    pub fn all_reduce_in_place<T: Element>(&self, slice: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(OpType::AllReduce, slice, Some(op), None)
    }

    /// As `reduce_scatter`, on a slice, blocking.
    pub fn reduce_scatter_in_place<T: Element>(&self, slice: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(OpType::ReduceScatter, slice, Some(op), None)
    }

    /// As `all_gather`, on a slice, blocking.
    pub fn all_gather_in_place<T: Element>(&self, slice: &mut [T]) -> Result<()> {
        self.run(OpType::AllGather, slice, None, None)
    }

    /// As `broadcast`, on a slice, blocking.
    pub fn broadcast_in_place<T: Element>(&self, slice: &mut [T], root: usize) -> Result<()> {
        self.run(OpType::Broadcast, slice, None, Some(root))
    }

    /// As `all_to_all`, on a slice, blocking.
    pub fn all_to_all_in_place<T: Element>(&self, slice: &mut [T]) -> Result<()> {
        self.run(OpType::AllToAll, slice, None, None)
    }

    /// The recorder of what this rank does in all its groups.
    pub fn flight_recorder(&self) -> FlightRecorder {
        let Context { recorder, fault, .. } = &self.0.progress.context;
        FlightRecorder::new(recorder.clone(), fault.clone())
    }

    /// A recorder for the operations that another library runs between this group's ranks at `members` (numbers within the
    /// group, in the same order on all of them). `name` is its name in the records, and `color` distinguishes it from others of this group.
    ///
    /// # Panics
    /// If a member is not below [`size`](ProcessGroup::size).
    pub fn external_recorder(&self, name: &str, color: u64, members: &[usize]) -> ExternalRecorder {
        let number = keyed_bytes(keyed_bytes(self.spec().group, name.as_bytes()), &color.to_le_bytes());
        let members: Vec<usize> = members.iter().map(|member| self.global_rank(*member)).collect();
        ExternalRecorder::new(self.0.progress.context.recorder.clone(), number, name, &members)
    }

    /// Fails the world on every rank with an error of this rank, if it has not failed before.
    pub fn fail(&self, error: Error) {
        self.0.progress.context.fault.raise(self.spec().world_rank(), error);
    }

    /// Asks every rank over the control plane what it waits for, and finds out who holds up this one. Takes up to a few seconds.
    pub fn diagnose(&self) -> Diagnosis {
        self.0.progress.context.connector.diagnose(self.spec().world_rank())
    }

    /// Gives the operations of all groups of this rank the longer [`Timeouts::init`](crate::Timeouts::init) until
    /// [`use_step_timeout`](Self::use_step_timeout), because some ranks may wait for others that still compile their kernels, or run a program's hooks. All ranks
    /// should call it.
    pub fn use_init_timeout(&self) {
        self.0.progress.context.timeout.set_uses_init(true);
    }

    /// Ends the time of [`use_init_timeout`](Self::use_init_timeout): from now on [`Timeouts::step`](crate::Timeouts::step) applies again, also to
    /// operations in flight. Call it when all ranks are known to have come so far.
    pub fn use_step_timeout(&self) {
        self.0.progress.context.timeout.set_uses_init(false);
    }

    pub(super) fn spec(&self) -> &GroupSpec {
        &self.0.progress.spec
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let GroupSpec { name, .. } = &self.progress.spec;
        let rank = self.progress.spec.world_rank();
        if std::thread::panicking() {
            let reason = format!("a thread that held group \"{name}\" panicked");
            self.progress.context.fault.raise(rank, Error::Aborted { rank, reason });
        }
        self.progress.close();
    }
}
