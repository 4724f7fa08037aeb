//! What the strategies ask of a backend: collectives over flat tensors.

use std::collections::BTreeMap;

use burn::tensor::{Device, FloatDType, Tensor};

use crate::activation::Part;
use crate::error::{Error, Result};

/// A collective, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Sum over all ranks, given to all.
    AllReduce,
    /// Sum over all ranks, each keeping its shard.
    ReduceScatter,
    /// All shards to all ranks.
    AllGather,
    /// One rank's tensor to all.
    Broadcast,
    /// Point to point.
    Send,
    /// A few numbers from every rank to every rank (losses, counts).
    AllGatherScalars,
    /// Waiting for all.
    Barrier,
}

impl Operation {
    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Send => "send",
            Self::AllGatherScalars => "all_gather_scalars",
            Self::Barrier => "barrier",
        }
    }
}

/// Calls and payload bytes that one rank sent, by collective.
pub type Traffic = BTreeMap<Operation, (u64, u64)>;

/// Something on its way: the operation was started, and [`wait`](Self::wait) gives its result.
pub struct Pending<T>(Box<dyn FnOnce() -> Result<T> + Send>);

/// A tensor on its way.
pub type PendingTensor = Pending<Tensor<1>>;

/// Numbers on their way from every rank: one list per rank, in rank order.
pub type PendingValues = Pending<Vec<Vec<f64>>>;

impl<T: Send + 'static> Pending<T> {
    /// From a closure that waits.
    pub fn new(wait: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// A result that is there already.
    pub fn ready(result: T) -> Self {
        Self::new(move || Ok(result))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// If the operation failed on any rank, a rank died, or the deadline passed.
    pub fn wait(self) -> Result<T> {
        (self.0)()
    }
}

/// What travels between two stages: the tensors of an activation, or the gradients of its parts, of
/// which some may not exist.
pub type Message = Vec<Option<Part>>;

/// A whole flat buffer in one place of memory that can be given back and filled again, while tensors that view it live on. This
/// one is empty: its tensors are there, but of no use before it is [`Filled`].
pub trait Refillable: Send {
    /// The buffer as a tensor; views of it see what it is filled with.
    fn tensor(&self) -> Tensor<1>;
    /// Starts to fill it with all ranks' shards, in rank order. After an error there is no buffer any more.
    ///
    /// # Safety
    /// From the call until the result has been waited for, nobody reads a tensor of this buffer, nor a view of one; if it is
    /// never waited for or failed, from then on.
    unsafe fn fill(self: Box<Self>, shard: Tensor<1>) -> Pending<Box<dyn Filled>>;
}

/// A [`Refillable`] buffer that holds what it was filled with.
pub trait Filled: Send {
    /// The buffer as a tensor, as [`Refillable::tensor`].
    fn tensor(&self) -> Tensor<1>;
    /// Gives its memory back to the system.
    ///
    /// # Safety
    /// Nobody reads a tensor of this buffer meanwhile, nor a view of one. What they show afterwards has no meaning.
    unsafe fn release(self: Box<Self>) -> Box<dyn Refillable>;
}

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
    /// Sums a tensor of any length over the ranks; all get the sum.
    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor;
    /// Sums a tensor of `size · n` elements over the ranks; rank `r` gets elements `r·n .. (r+1)·n`.
    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor;
    /// Joins every rank's `n` elements to one tensor of `size · n`, in rank order.
    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor;
    /// Gives all ranks the tensor of rank `root`; the others pass one of the same length.
    fn broadcast(&self, tensor: Tensor<1>, root: usize) -> PendingTensor;
    /// Starts to send a message to a rank that receives it with [`receive`](Self::receive); the
    /// result comes when the message has left.
    fn send(&self, message: Message, to: usize) -> Pending<()>;
    /// Starts to receive the next message of a rank, as tensors of `device`. Shapes and types come
    /// with the message.
    fn receive(&self, from: usize, device: &Device) -> Pending<Message>;
    /// Gives every rank the same few numbers of every rank.
    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// As [`PendingTensor::wait`].
    fn barrier(&self) -> Result<()>;
    /// Calls and bytes since the group began.
    fn traffic(&self) -> Traffic;
    /// A buffer for `size` shards of `shard` elements each, all in one place; none where the
    /// backend's memory cannot do that.
    fn refillable(&self, _shard: usize, _dtype: FloatDType, _device: &Device) -> Option<Box<dyn Refillable>> {
        None
    }
}

/// A group of one rank: every collective is the identity.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleRankGroup;

impl Collectives for SingleRankGroup {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_reduce(&self, tensor: Tensor<1>) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn reduce_scatter(&self, tensor: Tensor<1>) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn all_gather(&self, tensor: Tensor<1>) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn broadcast(&self, tensor: Tensor<1>, _root: usize) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn send(&self, _message: Message, to: usize) -> Pending<()> {
        Pending::new(move || Err(alone(to)))
    }
    fn receive(&self, from: usize, _device: &Device) -> Pending<Message> {
        Pending::new(move || Err(alone(from)))
    }
    fn all_gather_scalars(&self, values: Vec<f64>) -> PendingValues {
        Pending::ready(vec![values])
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn traffic(&self) -> Traffic {
        Traffic::new()
    }
}

fn alone(peer: usize) -> Error {
    Error::collective(format!("a rank that is alone has no peer {peer} to exchange messages with"))
}
