//! The calls that enqueue operations of NCCL on a stream.

use std::cell::Cell;
use std::ffi::c_int;

use brigade_comm::{DType, ReduceOp};
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::ncclComm_t;

use super::data_type::{data_type, reduction};
use super::library::{Functions, IN_PROGRESS, ResultCode, SUCCESS};

/// Calls `ncclGroupEnd` exactly once, even after a panic.
pub(super) struct GroupCallGuard<'a> {
    functions: &'a Functions,
    result: Option<ResultCode>,
}

impl<'a> GroupCallGuard<'a> {
    /// To be made after an `ncclGroupStart` on this thread.
    pub(super) fn new(functions: &'a Functions) -> Self {
        Self { functions, result: None }
    }

    pub(super) fn end(&mut self) -> ResultCode {
        // SAFETY: takes nothing; comes after a start on this thread.
        *self.result.get_or_insert_with(|| unsafe { (self.functions.group_end)() })
    }
}

impl Drop for GroupCallGuard<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A group call of NCCL, whose parts run as one operation; see [`Communicator::enqueue`](crate::Communicator::enqueue), which
/// reports the first part that NCCL refuses.
///
/// # Safety of its methods
/// Each address must be memory of this rank's GPU (or memory that it can access) with as many elements as the method says, and
/// nothing else may touch it until the stream is past the operation.
pub struct GroupCall<'a> {
    functions: &'a Functions,
    raw: ncclComm_t,
    stream: CUstream,
    failed: Cell<Option<(&'static str, ResultCode)>>,
}

impl<'a> GroupCall<'a> {
    /// # Safety
    /// `raw` must be an open communicator and `stream` a stream of its GPU, for as long as the group call is used.
    pub(super) unsafe fn new(functions: &'a Functions, raw: ncclComm_t, stream: CUstream) -> Self {
        Self { functions, raw, stream, failed: Cell::new(None) }
    }

    /// The first function that failed.
    pub(super) fn failed(&self) -> Option<(&'static str, ResultCode)> {
        self.failed.get()
    }

    /// Reduces `count` elements of all ranks, element by element, into `recv` on every rank; `send` may be `recv`.
    ///
    /// # Safety
    /// `count` elements at both; see [`GroupCall`].
    pub unsafe fn all_reduce(&self, send: u64, recv: u64, count: usize, dtype: DType, op: ReduceOp) {
        let (call, dtype, op) = (self.functions.all_reduce, data_type(dtype), reduction(op));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, dtype, op, self.raw, self.stream) };
        self.check("ncclAllReduce", code);
    }

    /// Reduces the `count` elements per rank at `send` of all ranks, and gives rank r the r-th `count` of the result at `recv`,
    /// which may be this rank's part of `send`.
    ///
    /// # Safety
    /// `count` elements at `recv`, as many for each rank at `send`; see [`GroupCall`].
    pub unsafe fn reduce_scatter(&self, send: u64, recv: u64, count: usize, dtype: DType, op: ReduceOp) {
        let (call, dtype, op) = (self.functions.reduce_scatter, data_type(dtype), reduction(op));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, dtype, op, self.raw, self.stream) };
        self.check("ncclReduceScatter", code);
    }

    /// Concatenates `count` elements of each rank, in rank order, into `recv` on every rank. `send` may be this rank's part of
    /// `recv`.
    ///
    /// # Safety
    /// `count` elements at `send`, as many for each rank at `recv`; see [`GroupCall`].
    pub unsafe fn all_gather(&self, send: u64, recv: u64, count: usize, dtype: DType) {
        let (call, dtype) = (self.functions.all_gather, data_type(dtype));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, dtype, self.raw, self.stream) };
        self.check("ncclAllGather", code);
    }

    /// Copies `count` elements at `send` on rank `root` to `recv` on every rank; `send` may be `recv`.
    ///
    /// # Safety
    /// `count` elements at both; see [`GroupCall`].
    pub unsafe fn broadcast(&self, send: u64, recv: u64, count: usize, dtype: DType, root: usize) {
        let (call, dtype, root) = (self.functions.broadcast, data_type(dtype), c_rank(root));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(send as _, recv as _, count, dtype, root, self.raw, self.stream) };
        self.check("ncclBroadcast", code);
    }

    /// Sends `count` elements to rank `peer`, which must receive as many. The stream waits until it does.
    ///
    /// # Safety
    /// `count` elements at `from`; see [`GroupCall`].
    pub unsafe fn send(&self, from: u64, count: usize, dtype: DType, peer: usize) {
        let (call, dtype, peer) = (self.functions.send, data_type(dtype), c_rank(peer));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(from as _, count, dtype, peer, self.raw, self.stream) };
        self.check("ncclSend", code);
    }

    /// Receives `count` elements from rank `peer`.
    ///
    /// # Safety
    /// `count` elements at `into`; see [`GroupCall`].
    pub unsafe fn recv(&self, into: u64, count: usize, dtype: DType, peer: usize) {
        let (call, dtype, peer) = (self.functions.recv, data_type(dtype), c_rank(peer));
        // SAFETY: the communicator is alive, and the caller vouches for the rest.
        let code = unsafe { call(into as _, count, dtype, peer, self.raw, self.stream) };
        self.check("ncclRecv", code);
    }

    /// Remembers the first failure.
    fn check(&self, call: &'static str, code: ResultCode) {
        if !matches!(code, SUCCESS | IN_PROGRESS) && self.failed.get().is_none() {
            self.failed.set(Some((call, code)));
        }
    }
}

/// NCCL refuses a rank that does not exist.
fn c_rank(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}
