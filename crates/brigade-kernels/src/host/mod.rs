//! What fused operations need of Burn's CPU backend, which keeps tensors in host memory.

mod buffer;
mod fused;
mod later;
mod number;
mod view;

pub(crate) use buffer::Buffer;
#[cfg(feature = "cube")]
pub(crate) use fused::is_switched_on;
pub(crate) use fused::{FusedOperation, apply, is_on_host};
pub use fused::{is_fused, is_fused_on_cpu, set_fused};
pub(crate) use later::{Products, WeightProduct, leave, leaving};
pub(crate) use number::Number;
pub(crate) use view::{contiguous, forward_strides, matrix, rows, values};
