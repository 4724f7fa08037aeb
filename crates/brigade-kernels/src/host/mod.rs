//! What fused operations need of Burn's CPU backend, which keeps tensors in host memory.

pub(crate) mod attention;
mod buffer;
mod conversion;
mod fused;
mod number;
mod view;
mod weight_product;

pub(crate) use buffer::Buffer;
pub use conversion::cast;
pub(crate) use fused::{FusedOperation, apply, is_on_host};
pub(crate) use number::Number;
pub(crate) use view::{contiguous, forward_strides, matrix, rows, values};
pub(crate) use weight_product::HostProduct;
