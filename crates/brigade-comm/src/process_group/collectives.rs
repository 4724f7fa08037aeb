//! The operations of a process group, for any buffer.

use super::work::{OpBuffer, OwnedBuffer, Work};
use super::{OpArgs, ProcessGroup};
use crate::op::buffer::HostBuffer;
use crate::op::call::OpType;
use crate::op::dtype::{DType, ReduceOp};

impl dyn ProcessGroup + '_ {
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

    /// Gathers a few numbers from every rank, equally many from each: rank r's begin at r times their count.
    pub fn all_gather_scalars(&self, values: &[f64]) -> Work<Vec<f64>> {
        let (rank, each) = (self.rank(), values.len());
        let mut all = vec![0.0; each * self.size()];
        all[rank * each..(rank + 1) * each].copy_from_slice(values);
        self.all_gather(all, DType::F64)
    }

    /// Sends a buffer to rank `to`, which receives it with `recv` or `recv_message`. Complete when the buffer can be used
    /// again; the peer may not have it all by then. Transfers between two ranks in one direction keep their order; they never
    /// wait for collectives or for other transfers.
    pub fn send<B: HostBuffer>(&self, buffer: B, dtype: DType, to: usize) -> Work<B> {
        let args = OpArgs { peer: Some(to), ..OpArgs::new(OpType::Send, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Fills a buffer with what rank `from` sends, which must have the same type and size. The
    /// [deadline](crate::Timeouts::step) counts from when the earlier receives from that rank are complete.
    pub fn recv<B: HostBuffer>(&self, buffer: B, dtype: DType, from: usize) -> Work<B> {
        let args = OpArgs { peer: Some(from), ..OpArgs::new(OpType::Recv, dtype) };
        self.launch(args, OwnedBuffer::sized(buffer))
    }

    /// Gives what rank `from` sends as [`DType::U8`], of any size up to `limit` bytes, in the order and with the deadline of a
    /// `recv`. Memory is allocated when the size is known, not when this is called. A larger buffer, one of another type, or no
    /// memory for it is an error on all ranks.
    pub fn recv_message(&self, from: usize, limit: usize) -> Work<Vec<u8>> {
        let args = OpArgs { peer: Some(from), limit, ..OpArgs::new(OpType::RecvMessage, DType::U8) };
        self.launch(args, OwnedBuffer::message())
    }

    fn launch<B>(&self, args: OpArgs, (buffer, work): (Box<dyn OpBuffer>, Work<B>)) -> Work<B> {
        self.start(args, buffer);
        work.driven_by(self.driver())
    }
}
