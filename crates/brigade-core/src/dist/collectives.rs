//! The operations that strategies need from a backend: collectives over flat tensors.

use std::sync::Arc;

use brigade_sorted::SortedMap;
use burn::tensor::{Device, FloatDType, Tensor};

use crate::dist::buffers::ReshardedBuffer;
use crate::dist::pending::{Pending, PendingTensor, PendingValues};
use crate::error::Result;
use crate::model::activation::Part;

/// A kind of collective, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// The sum over all ranks, on every rank.
    AllReduce,
    /// The sum over all ranks, of which each rank gets its shard.
    ReduceScatter,
    /// All shards, on every rank.
    AllGather,
    /// A part of every rank's bytes, on each rank.
    AllToAll,
    /// One rank's tensor, on every rank.
    Broadcast,
    /// Point to point.
    Send,
    /// A few numbers of every rank, on every rank (losses, counts).
    AllGatherScalars,
    /// Waiting for all ranks.
    Barrier,
}

impl CollectiveKind {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Send => "send",
            Self::AllGatherScalars => "all_gather_scalars",
            Self::Barrier => "barrier",
        }
    }
}

/// Calls and payload bytes that one rank sent, by collective.
pub type Traffic = SortedMap<CollectiveKind, (u64, u64)>;

/// Adds what was sent elsewhere.
pub(crate) fn add_traffic(sum: &mut Traffic, more: Traffic) {
    for (operation, (calls, bytes)) in more {
        let sum = sum.entry(operation).or_default();
        *sum = (sum.0 + calls, sum.1 + bytes);
    }
}

/// A message between two stages: the tensors of an activation, or the gradients of its parts, some of which may not exist.
pub type Message = Vec<Option<Part>>;

/// The collectives of one group of ranks, over one-dimensional float tensors of the rank's device.
///
/// All ranks of the group call the same operations with the same lengths in the same order. Each
/// call starts its operation and returns at once; operations run in the order of the calls.
/// Sums are taken per element, pairwise in rank order by doubling strides, the pattern of
/// [`crate::PairwiseSum`].
pub trait Collectives: Send + Sync {
    /// This rank's number in the group.
    fn rank(&self) -> usize;
    /// Number of ranks in the group.
    fn size(&self) -> usize;
    /// Whether its ranks are known to be on several hosts.
    fn spans_hosts(&self) -> bool {
        false
    }
    /// Two groups, where collectives are in two levels: the neighbours on this rank's host with which it adds up first, and the ranks that
    /// have its place among theirs. None where they are in one. All ranks call it together.
    ///
    /// # Errors
    /// If the groups cannot be made: the group has then failed on all ranks.
    fn levels(&self) -> Result<Option<[Arc<dyn Collectives>; 2]>> {
        Ok(None)
    }
    /// Sums a tensor of any length over the ranks; all get the sum.
    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor;
    /// Sums a tensor of `size · n` elements over the ranks; rank `r` gets elements `r·n .. (r+1)·n`.
    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor;
    /// Concatenates every rank's `n` elements to one tensor of `size · n`, in rank order.
    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor;
    /// Gives all ranks the tensor of rank `root`; the others pass one of the same length.
    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor;
    /// Starts to send a message to a rank that receives it with [`receive`](Self::receive). The operation is finished when the
    /// message has been sent.
    fn send(&self, message: Message, to: usize) -> Pending<()>;
    /// Starts to receive the next message of a rank, as tensors of `device`. Shapes and types come
    /// with the message.
    fn receive(&self, from: usize, device: &Device) -> Pending<Message>;
    /// Gives every rank the same few numbers of every rank.
    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues;
    /// Cuts every rank's bytes into `size` equal parts, and gives rank `r` the `r`-th of every rank, in rank order: codes of tensors,
    /// which travel through host memory.
    fn all_to_all_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>>;
    /// Concatenates every rank's bytes, as many on each, in rank order.
    fn all_gather_bytes(&self, bytes: Vec<u8>) -> Pending<Vec<u8>>;
    /// Begins what was called and waits to travel with others; all ranks call it at the same place. By default nothing does.
    fn flush(&self) {}
    /// Waits for all ranks.
    ///
    /// # Errors
    /// As [`PendingTensor::wait`].
    fn barrier(&self) -> Result<()>;
    /// Calls and bytes since the group began.
    fn traffic(&self) -> Traffic;
    /// A buffer for `size` shards of `shard` elements each, at one address; `None` if the backend cannot provide one.
    fn unsharded_buffer(
        &self,
        _shard: usize,
        _dtype: FloatDType,
        _device: &Device,
    ) -> Option<Box<dyn ReshardedBuffer>> {
        None
    }
}
