//! The calls that put operations of NCCL into a stream.

use std::cell::Cell;
use std::ffi::c_int;

use brigade_comm::ReduceOp;
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::ncclComm_t;

use crate::element::{ElementType, reduction};
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

/// Where the parts of one operation are put; see [`Communicator::grouped`](crate::Communicator::grouped). The
/// first failure is kept for its end.
pub struct Queue<'a> {
    calls: &'a Calls,
    raw: ncclComm_t,
    stream: CUstream,
    failed: Cell<Option<(&'static str, Code)>>,
}

impl<'a> Queue<'a> {
    /// `raw` must be alive as long as the queue is used.
    pub(crate) fn new(calls: &'a Calls, raw: ncclComm_t, stream: CUstream) -> Self {
        Self { calls, raw, stream, failed: Cell::new(None) }
    }

    /// The first function that failed.
    pub(crate) fn failed(&self) -> Option<(&'static str, Code)> {
        self.failed.get()
    }

    /// As [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_reduce(&self, send: u64, recv: u64, count: usize, element: ElementType, op: ReduceOp) {
        let (call, kind, op) = (self.calls.all_reduce, element.nccl(), reduction(op));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, kind, op, self.raw, self.stream) };
        self.keep("ncclAllReduce", code);
    }

    /// As [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    ///
    /// # Safety
    /// As there.
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

    /// As [`Communicator::all_gather`](crate::Communicator::all_gather).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn all_gather(&self, send: u64, recv: u64, count: usize, element: ElementType) {
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe {
            (self.calls.all_gather)(send as _, recv as _, count, element.nccl(), self.raw, self.stream)
        };
        self.keep("ncclAllGather", code);
    }

    /// As [`Communicator::broadcast`](crate::Communicator::broadcast).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn broadcast(&self, send: u64, recv: u64, count: usize, element: ElementType, root: usize) {
        let (call, kind, root) = (self.calls.broadcast, element.nccl(), c_rank(root));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, kind, root, self.raw, self.stream) };
        self.keep("ncclBroadcast", code);
    }

    /// As [`Communicator::send`](crate::Communicator::send).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn send(&self, from: u64, count: usize, element: ElementType, peer: usize) {
        let call = self.calls.send;
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(from as _, count, element.nccl(), c_rank(peer), self.raw, self.stream) };
        self.keep("ncclSend", code);
    }

    /// As [`Communicator::recv`](crate::Communicator::recv).
    ///
    /// # Safety
    /// As there.
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
