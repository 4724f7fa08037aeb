//! Flat buffers that are unsharded and resharded at one address.

use burn::tensor::Tensor;

use crate::dist::pending::{Pending, PendingTensor};

/// A flat buffer whose memory can be freed and gathered again while tensors that view it stay alive. In this state the memory is
/// freed: the buffer's tensors exist, but must not be read until it is an [`UnshardedBuffer`].
pub trait ReshardedBuffer: Send {
    /// The buffer as a tensor. Views of it see what is gathered into it.
    fn tensor(&self) -> Tensor<1>;
    /// Starts to all-gather the shards into it, in rank order. After an error the buffer no longer exists.
    ///
    /// # Safety
    /// Nobody may read a tensor of this buffer, nor a view of one, until the result has been waited for; if that never happens or
    /// fails, nobody may ever read one.
    unsafe fn all_gather(self: Box<Self>, shard: Tensor<1>) -> Pending<Box<dyn UnshardedBuffer>>;
    /// Copies into it what is gathered in another way, once that is there. After an error the buffer no longer exists.
    ///
    /// # Safety
    /// As [`all_gather`](Self::all_gather).
    unsafe fn fill(self: Box<Self>, whole: PendingTensor) -> Pending<Box<dyn UnshardedBuffer>>;
}

/// A [`ReshardedBuffer`] that has all ranks' shards.
pub trait UnshardedBuffer: Send {
    /// The buffer as a tensor, as [`ReshardedBuffer::tensor`].
    fn tensor(&self) -> Tensor<1>;
    /// Returns its memory to the system.
    ///
    /// # Safety
    /// Meanwhile, nobody may read a tensor of this buffer or a view of one. Their values are meaningless afterwards.
    unsafe fn reshard(self: Box<Self>) -> Box<dyn ReshardedBuffer>;
}
