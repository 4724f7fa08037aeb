//! A unit's whole buffer, unsharded or not.

use burn::tensor::Tensor;

use crate::dist::{Pending, PendingTensor, ReshardedBuffer, UnshardedBuffer};
use crate::error::Result;

/// The whole buffer, in the type that blocks compute in.
#[expect(clippy::large_enum_variant, reason = "there is one for each unit")]
pub(crate) enum WholeBuffer {
    /// Not on this rank.
    Absent,
    /// Being gathered into a tensor of its own.
    Gathering(PendingTensor),
    /// In a tensor of its own.
    Whole(Tensor<1>),
    /// Freed, but with its address kept for the views that blocks hold.
    Resharded(Box<dyn ReshardedBuffer>),
    /// Being gathered at its address.
    Unsharding(Pending<Box<dyn UnshardedBuffer>>),
    /// Gathered at its address.
    Unsharded(Box<dyn UnshardedBuffer>),
}

impl WholeBuffer {
    /// Whether it is gathered and freed at one address.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self, Self::Resharded(_) | Self::Unsharding(_) | Self::Unsharded(_))
    }

    /// A tensor of the buffer that blocks may view, even if its memory is freed and only its address is kept.
    pub(crate) fn view(&self) -> Option<Tensor<1>> {
        match self {
            Self::Whole(tensor) => Some(tensor.clone()),
            Self::Resharded(buffer) => Some(buffer.tensor()),
            Self::Unsharded(buffer) => Some(buffer.tensor()),
            Self::Absent | Self::Gathering(_) | Self::Unsharding(_) => None,
        }
    }

    /// Whether it uses memory now, or will once it has been gathered.
    pub(crate) fn takes_memory(&self) -> bool {
        !matches!(self, Self::Absent | Self::Resharded(_))
    }

    /// Frees the gathered buffer. It first waits for an all-gather in flight, which still writes to the buffer.
    pub(crate) fn reshard(&mut self) -> Result<()> {
        *self = match std::mem::replace(self, Self::Absent) {
            Self::Unsharding(pending) => Self::resharded(pending.wait()?),
            Self::Unsharded(buffer) => Self::resharded(buffer),
            Self::Resharded(buffer) => Self::Resharded(buffer),
            Self::Absent | Self::Gathering(_) | Self::Whole(_) => Self::Absent,
        };
        Ok(())
    }

    fn resharded(buffer: Box<dyn UnshardedBuffer>) -> Self {
        // SAFETY: only blocks and their graphs hold tensors of the buffer, and `Block` says that they are read while a block
        // runs, and at no other time. Blocks run on this thread, which is here.
        Self::Resharded(unsafe { buffer.reshard() })
    }
}
