//! The operations as CubeCL kernels: on CUDA's GPUs and wgpu's adapters, in fp32 and bf16.
//!
//! Invariants:
//! - Whatever type the values have, a kernel computes in fp32 and rounds once, when it writes.
//! - Sums have an order that depends on shapes and on the width of the device's planes alone: two runs give the same bits.
//! - A buffer is written in its place only where an operation has made it itself, or nobody else has it.

mod activation;
mod adamw;
mod apply;
mod attention;
mod cross_entropy;
mod dropout;
mod embedding;
mod gated;
mod launch;
mod linear;
mod norm;
mod rotary;
mod squares;

pub(crate) use adamw::{StepRun, adamw};
pub use apply::trust_software;
pub(crate) use apply::{apply, is_fused};
pub(crate) use attention::{Attention, Layout};
pub(crate) use cross_entropy::LinearCrossEntropy;
pub(crate) use dropout::Dropout;
pub(crate) use embedding::Embedding;
pub use linear::products::{Epilogue, MatrixProducts, Product, use_products};
pub(crate) use norm::Norm;
pub(crate) use rotary::Rotary;
pub(crate) use squares::square_sums;
