//! Groups of ranks and what they can do together.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade_random::keyed_bytes;

use crate::Result;
use crate::error::Error;
use crate::flight::{ExternalRecorder, FlightRecorder};
use crate::op::buffer::HostBuffer;
use crate::op::call::OpType;
use crate::op::dtype::{DType, Element, ReduceOp};
use crate::op::plan::Plan;
use crate::op::stats::Stats;
use crate::process_group::OpArgs;
use crate::process_group::work::{OwnedBuffer, Work};
use crate::progress::context::{Context, GroupSpec};
use crate::progress::engine::ProgressEngine;

/// An ordered set of ranks that communicate. Clones are handles of the same group.
///
/// Every member calls the same collectives in the same order; the caller must
/// order calls from several threads of one rank. Ranks in arguments count within the group; ranks in errors are those of the world.
///
/// Collectives come in two forms. The first takes a buffer and gives a [`Work`] handle: the operation runs on the
/// group's progress thread, while the caller computes. The second, `…_in_place`, borrows a slice and returns when it
/// is done: it runs on the caller's thread unless earlier operations are still in flight.
#[derive(Clone)]
pub struct Group(pub(super) Arc<Member>);

/// One rank's membership.
pub(super) struct Member {
    pub(super) progress: Arc<ProgressEngine>,
    /// How often the group has been split. Held while it is, so that splits of several threads do not mix.
    pub(super) splits: Mutex<u64>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(\"{}\", rank {} of {})", self.name(), self.rank(), self.size())
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

    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.spec().rank
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.spec().members.len()
    }

    /// The name that the group was made with; `world` for the group of all ranks.
    pub fn name(&self) -> &str {
        &self.spec().name
    }

    /// The rank in the world of the group's rank `rank`.
    ///
    /// # Panics
    /// If `rank` is not below [`size`](Self::size).
    pub fn global_rank(&self, rank: usize) -> usize {
        self.spec().members[rank]
    }

    /// Reduces the buffers of all ranks, element by element; every rank gets the result. Any length.
    pub fn all_reduce<B: HostBuffer>(&self, buffer: B, dtype: DType, op: ReduceOp) -> Work<B> {
        let args = OpArgs { reduce: Some(op), ..OpArgs::new(OpType::AllReduce, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Reduces the buffers of all ranks, cut into as many equal slices as there are ranks: slice `rank` of the result
    /// holds the reduced values, the others are unspecified.
    pub fn reduce_scatter<B: HostBuffer>(&self, buffer: B, dtype: DType, op: ReduceOp) -> Work<B> {
        let args = OpArgs { reduce: Some(op), ..OpArgs::new(OpType::ReduceScatter, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Gives slice `rank` of the buffer, one of as many equal slices as there are ranks, and gets all others.
    pub fn all_gather<B: HostBuffer>(&self, buffer: B, dtype: DType) -> Work<B> {
        self.launch(OpArgs::new(OpType::AllGather, dtype), OwnedBuffer::sized(buffer))
    }

    /// Gives slice `rank` of the buffer to `root`, which gets all slices. All ranks' buffers have the same size.
    pub fn gather<B: HostBuffer>(&self, buffer: B, dtype: DType, root: usize) -> Work<B> {
        let args = OpArgs { root: Some(root), ..OpArgs::new(OpType::Gather, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Gives the root's buffer to everybody. Any length.
    pub fn broadcast<B: HostBuffer>(&self, buffer: B, dtype: DType, root: usize) -> Work<B> {
        let args = OpArgs { root: Some(root), ..OpArgs::new(OpType::Broadcast, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Of as many equal slices as there are ranks, gives slice p to rank p and gets p's slice `rank` in its place.
    pub fn all_to_all<B: HostBuffer>(&self, buffer: B, dtype: DType) -> Work<B> {
        self.launch(OpArgs::new(OpType::AllToAll, dtype), OwnedBuffer::sized(buffer))
    }

    /// Sends a buffer to the group's rank `to`, which receives it with [`recv`](Self::recv) or
    /// [`recv_message`](Self::recv_message). Complete when the buffer can be used again; the peer may not have it all
    /// by then. Transfers between two ranks in one direction keep their order; they never wait for collectives or for
    /// other transfers.
    pub fn send<B: HostBuffer>(&self, buffer: B, dtype: DType, to: usize) -> Work<B> {
        let args = OpArgs { peer: Some(to), ..OpArgs::new(OpType::Send, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Fills a buffer with what the group's rank `from` [sends](Self::send), which must have the same type and size.
    /// The [deadline](crate::Timeouts::step) counts from when the earlier receives from that rank are complete.
    pub fn recv<B: HostBuffer>(&self, buffer: B, dtype: DType, from: usize) -> Work<B> {
        let args = OpArgs { peer: Some(from), ..OpArgs::new(OpType::Recv, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Gives what the group's rank `from` [sends](Self::send) as [`DType::U8`], of any size up to `limit` bytes. It has
    /// the order and the deadline of a [`recv`](Self::recv). Memory is allocated when the size has come, not when this
    /// is called. A larger buffer, one of another type, or no memory for it is an error on all ranks.
    pub fn recv_message(&self, from: usize, limit: usize) -> Work<Vec<u8>> {
        let args = OpArgs { peer: Some(from), limit, ..OpArgs::new(OpType::RecvMessage, DType::U8) };
        self.launch(args, OwnedBuffer::message())
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.run::<u8>(OpType::Barrier, &mut vec![0; Plan::barrier_bytes(self.size())], None, None)
    }

    /// As [`all_reduce`](Self::all_reduce), on a slice, blocking.
    pub fn all_reduce_in_place<T: Element>(&self, slice: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(OpType::AllReduce, slice, Some(op), None)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), on a slice, blocking.
    pub fn reduce_scatter_in_place<T: Element>(&self, slice: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(OpType::ReduceScatter, slice, Some(op), None)
    }

    /// As [`all_gather`](Self::all_gather), on a slice, blocking.
    pub fn all_gather_in_place<T: Element>(&self, slice: &mut [T]) -> Result<()> {
        self.run(OpType::AllGather, slice, None, None)
    }

    /// As [`gather`](Self::gather), on a slice, blocking.
    pub fn gather_in_place<T: Element>(&self, slice: &mut [T], root: usize) -> Result<()> {
        self.run(OpType::Gather, slice, None, Some(root))
    }

    /// As [`broadcast`](Self::broadcast), on a slice, blocking.
    pub fn broadcast_in_place<T: Element>(&self, slice: &mut [T], root: usize) -> Result<()> {
        self.run(OpType::Broadcast, slice, None, Some(root))
    }

    /// As [`all_to_all`](Self::all_to_all), on a slice, blocking.
    pub fn all_to_all_in_place<T: Element>(&self, slice: &mut [T]) -> Result<()> {
        self.run(OpType::AllToAll, slice, None, None)
    }

    /// What this rank has done in this group so far. An all-reduce of L bytes over n ranks counts exactly
    /// 2·L·(n−1)/n sent bytes where n divides the number of elements.
    pub fn stats(&self) -> Stats {
        self.0.progress.counters.read()
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
    /// If a member is not below [`size`](Self::size).
    pub fn external_recorder(&self, name: &str, color: u64, members: &[usize]) -> ExternalRecorder {
        let number = keyed_bytes(keyed_bytes(self.spec().group, name.as_bytes()), &color.to_le_bytes());
        let members: Vec<usize> = members.iter().map(|member| self.global_rank(*member)).collect();
        ExternalRecorder::new(self.0.progress.context.recorder.clone(), number, name, &members)
    }

    /// Gives the operations of all groups of this rank the longer [`Timeouts::init`](crate::Timeouts::init) until
    /// [`warmed_up`](Self::warmed_up), because some ranks may wait for others that still compile their kernels. All ranks
    /// should call it.
    pub fn warm_up(&self) {
        self.0.progress.context.timeout.set_warming_up(true);
    }

    /// Ends the time of [`warm_up`](Self::warm_up): from now on [`Timeouts::step`](crate::Timeouts::step) applies again, also to
    /// operations in flight. Call it when all ranks are known to have warmed up.
    pub fn warmed_up(&self) {
        self.0.progress.context.timeout.set_warming_up(false);
    }

    /// The current deadline of one operation of this rank.
    pub fn op_timeout(&self) -> Duration {
        self.0.progress.context.timeout.now()
    }

    /// Fails the world on every rank: operations in flight and later ones return an error with this rank and `reason`.
    pub fn abort(&self, reason: &str) {
        let rank = self.spec().world_rank();
        self.0.progress.context.fault.raise(rank, Error::Aborted { rank, reason: reason.into() });
    }

    /// The first failure of the world that this rank knows of, from its point of view.
    pub fn failure(&self) -> Option<Error> {
        self.0.progress.context.fault.error_for(self.spec().world_rank())
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
