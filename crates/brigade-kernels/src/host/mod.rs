//! What fused operations need of Burn's CPU backend, which keeps tensors in host memory.

pub(crate) mod attention;
mod buffer;
mod fused;
mod later;
mod number;
mod view;

pub(crate) use buffer::Buffer;
pub(crate) use fused::{FusedOperation, apply, is_on_host};
pub(crate) use later::{Products, WeightProduct, leave, leaving};
pub(crate) use number::Number;
pub(crate) use view::{contiguous, forward_strides, matrix, rows, values};
