//! What the strategies ask of a backend: collectives over flat tensors.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use crate::error::Result;

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
    Exchange,
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
            Self::Exchange => "exchange",
            Self::Barrier => "barrier",
        }
    }
}

/// Calls and payload bytes that one rank sent, by collective.
pub type Traffic = BTreeMap<Operation, (u64, u64)>;

/// A tensor on its way: the operation was started, and [`wait`](Self::wait) gives its result.
pub struct PendingTensor(Box<dyn FnOnce() -> Result<Tensor<1>> + Send>);

impl PendingTensor {
    /// From a closure that waits.
    pub fn new(wait: impl FnOnce() -> Result<Tensor<1>> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// A result that is there already.
    pub fn ready(tensor: Tensor<1>) -> Self {
        Self::new(move || Ok(tensor))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// If the operation failed on any rank, a rank died, or the deadline passed.
    pub fn wait(self) -> Result<Tensor<1>> {
        (self.0)()
    }
}

/// Numbers on their way from every rank.
pub struct PendingValues(Box<dyn FnOnce() -> Result<Vec<Vec<f64>>> + Send>);

impl PendingValues {
    /// From a closure that waits.
    pub fn new(wait: impl FnOnce() -> Result<Vec<Vec<f64>>> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Waits for the numbers, one list per rank in rank order.
    ///
    /// # Errors
    /// As [`PendingTensor::wait`].
    pub fn wait(self) -> Result<Vec<Vec<f64>>> {
        (self.0)()
    }
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
    /// Sends a tensor to a rank that receives it with [`receive`](Self::receive).
    fn send(&self, tensor: Tensor<1>, to: usize) -> PendingTensor;
    /// Receives a tensor; `into` has the length, type and device of what is to come.
    fn receive(&self, into: Tensor<1>, from: usize) -> PendingTensor;
    /// Gives every rank the same few numbers of every rank.
    fn exchange(&self, values: Vec<f64>) -> PendingValues;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// As [`PendingTensor::wait`].
    fn barrier(&self) -> Result<()>;
    /// Calls and bytes since the group began.
    fn traffic(&self) -> Traffic;
}

/// A group of one rank: every collective is the identity.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Collectives for Solo {
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
    fn send(&self, tensor: Tensor<1>, _to: usize) -> PendingTensor {
        PendingTensor::ready(tensor)
    }
    fn receive(&self, into: Tensor<1>, _from: usize) -> PendingTensor {
        PendingTensor::ready(into)
    }
    fn exchange(&self, values: Vec<f64>) -> PendingValues {
        PendingValues::new(move || Ok(vec![values]))
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn traffic(&self) -> Traffic {
        Traffic::new()
    }
}
