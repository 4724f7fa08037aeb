//! cuBLAS: NVIDIA's products of matrices, found at run time. Without it, Burn's own kernels multiply.

mod codes;
mod gemm;
mod handle;
mod library;
mod lt;

pub(crate) use gemm::{Gemm, Number, Operand};
pub(crate) use handle::Handle;
pub(crate) use library::is_cublas_named;
pub use library::{CUBLAS_FILE, Cublas, cublas};
pub(crate) use lt::{ALIGNMENT, Addresses, Finish, Plan, WORKSPACE};
