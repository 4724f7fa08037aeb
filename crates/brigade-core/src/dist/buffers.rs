//! Flat buffers that are unsharded and resharded in one place of memory.

use burn::tensor::Tensor;

use crate::dist::pending::Pending;

/// A flat buffer whose memory can be given back and gathered anew while tensors that view it live on. In this state the
/// memory is given back: the buffer's tensors exist, but must not be read before it is an [`UnshardedBuffer`].
pub trait ReshardedBuffer: Send {
    /// The buffer as a tensor; views of it see what is gathered into it.
    fn tensor(&self) -> Tensor<1>;
    /// Starts to gather all ranks' shards into it, in rank order. After an error the buffer no longer exists.
    ///
    /// # Safety
    /// From the call until the result has been waited for, nobody reads a tensor of this buffer, nor a view of one; if it is
    /// never waited for or failed, from then on.
    unsafe fn all_gather(self: Box<Self>, shard: Tensor<1>) -> Pending<Box<dyn UnshardedBuffer>>;
}

/// A [`ReshardedBuffer`] that holds all ranks' shards.
pub trait UnshardedBuffer: Send {
    /// The buffer as a tensor, as [`ReshardedBuffer::tensor`].
    fn tensor(&self) -> Tensor<1>;
    /// Gives its memory back to the system.
    ///
    /// # Safety
    /// Nobody reads a tensor of this buffer meanwhile, nor a view of one. What they show afterwards has no meaning.
    unsafe fn reshard(self: Box<Self>) -> Box<dyn ReshardedBuffer>;
}
