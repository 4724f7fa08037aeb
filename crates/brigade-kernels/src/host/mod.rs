//! Operations of our own in the graphs of Burn's CPU backend, which keeps tensors in host memory.

mod buffer;
mod operation;
mod view;

pub(crate) use buffer::Buffer;
pub(crate) use operation::{Operation, apply};
pub use operation::{is_fused, set_fused};
pub(crate) use view::{contiguous, forward_strides, matrix, rows, values};
