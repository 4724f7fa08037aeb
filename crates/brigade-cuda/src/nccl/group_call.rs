//! The calls that put operations of NCCL into a stream.

use std::cell::Cell;
use std::ffi::c_int;

use brigade_comm::ReduceOp;
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::ncclComm_t;

use super::data_type::{ElementType, reduction};
use crate::nccl::{Calls, Code, IN_PROGRESS, SUCCESS};

/// The end of an NCCL group of calls, also where a panic leaves it.
pub(crate) struct GroupEnd<'a> {
    calls: &'a Calls,
    result: Option<Code>,
}

impl<'a> GroupEnd<'a> {
    /// Comes after a start on this thread.
    pub(crate) fn new(calls: &'a Calls) -> Self {
        Self { calls, result: None }
    }

    pub(crate) fn end(&mut self) -> Code {
        // SAFETY: takes nothing; comes after a start on this thread.
        *self.result.get_or_insert_with(|| unsafe { (self.calls.group_end)() })
    }
}

impl Drop for GroupEnd<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Where the parts of one operation are put; see [`Communicator::enqueue`](crate::Communicator::enqueue), which reports the
/// first one that NCCL refuses.
///
/// # Safety of its methods
/// Each address must be memory of this rank's GPU (or memory that it can reach) with as many elements as the method says, and
/// nothing else may touch it until the stream is past the operation.
pub struct Queue<'a> {
    calls: &'a Calls,
    raw: ncclComm_t,
    stream: CUstream,
    failed: Cell<Option<(&'static str, Code)>>,
}

impl<'a> Queue<'a> {
    /// # Safety
    /// `raw` must be an open communicator and `stream` a stream of its GPU, as long as the queue is used.
    pub(crate) unsafe fn new(calls: &'a Calls, raw: ncclComm_t, stream: CUstream) -> Self {
        Self { calls, raw, stream, failed: Cell::new(None) }
    }

    /// The first function that failed.
    pub(crate) fn failed(&self) -> Option<(&'static str, Code)> {
        self.failed.get()
    }

    /// Combines `count` elements of all ranks, element by element, into `recv` on every rank; `send` may be `recv`.
    ///
    /// # Safety
    /// `count` elements at both; see [`Queue`].
    pub unsafe fn all_reduce(&self, send: u64, recv: u64, count: usize, element: ElementType, op: ReduceOp) {
        let (call, kind, op) = (self.calls.all_reduce, element.nccl(), reduction(op));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, kind, op, self.raw, self.stream) };
        self.keep("ncclAllReduce", code);
    }

    /// Combines `count` elements for each of the group's ranks; rank r gets the r-th `count` of the result. `recv` may be that
    /// part of `send`.
    ///
    /// # Safety
    /// `count` elements at `recv`, as many for each rank at `send`; see [`Queue`].
    pub unsafe fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        element: ElementType,
        op: ReduceOp,
    ) {
        let (call, kind, op) = (self.calls.reduce_scatter, element.nccl(), reduction(op));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, kind, op, self.raw, self.stream) };
        self.keep("ncclReduceScatter", code);
    }

    /// Puts `count` elements of each rank one after the other, in rank order, into `recv` on every rank. `send` may be this
    /// rank's part of `recv`.
    ///
    /// # Safety
    /// `count` elements at `send`, as many for each rank at `recv`; see [`Queue`].
    pub unsafe fn all_gather(&self, send: u64, recv: u64, count: usize, element: ElementType) {
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe {
            (self.calls.all_gather)(send as _, recv as _, count, element.nccl(), self.raw, self.stream)
        };
        self.keep("ncclAllGather", code);
    }

    /// Copies `count` elements at `send` on rank `root` to `recv` on every rank; `send` may be `recv`.
    ///
    /// # Safety
    /// `count` elements at both; see [`Queue`].
    pub unsafe fn broadcast(&self, send: u64, recv: u64, count: usize, element: ElementType, root: usize) {
        let (call, kind, root) = (self.calls.broadcast, element.nccl(), c_rank(root));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, kind, root, self.raw, self.stream) };
        self.keep("ncclBroadcast", code);
    }

    /// Sends `count` elements to rank `peer`, which must receive as many. The stream waits until it does.
    ///
    /// # Safety
    /// `count` elements at `from`; see [`Queue`].
    pub unsafe fn send(&self, from: u64, count: usize, element: ElementType, peer: usize) {
        let call = self.calls.send;
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(from as _, count, element.nccl(), c_rank(peer), self.raw, self.stream) };
        self.keep("ncclSend", code);
    }

    /// Receives `count` elements from rank `peer`.
    ///
    /// # Safety
    /// `count` elements at `into`; see [`Queue`].
    pub unsafe fn recv(&self, into: u64, count: usize, element: ElementType, peer: usize) {
        let call = self.calls.recv;
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(into as _, count, element.nccl(), c_rank(peer), self.raw, self.stream) };
        self.keep("ncclRecv", code);
    }

    fn keep(&self, call: &'static str, code: Code) {
        if !matches!(code, SUCCESS | IN_PROGRESS) && self.failed.get().is_none() {
            self.failed.set(Some((call, code)));
        }
    }
}

/// NCCL refuses a rank that there is not.
fn c_rank(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}
