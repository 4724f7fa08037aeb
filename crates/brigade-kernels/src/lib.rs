//! Fused operations with gradients, on Burn's tensors.
//!
//! Each is a function of tensors that any model may call. On Burn's CPU backend, in fp32 or bf16 (one type for all arguments), it is one step of the autodiff graph, whose forward and backward are kernels of
//! [`brigade_simd`]. With the feature `cuda` or `wgpu`, most have CubeCL kernels for the tensors of that backend, too. Everywhere else (other
//! devices, other number types), it is the same function by Burn's own operations.
//!
//! Invariants:
//! - Sums, statistics of norms, softmaxes and losses are fp32, whatever type the values have.
//! - An operation's result and gradients depend only on its inputs: not on other threads, addresses or state.
//! - A gradient that is left for later ([`deferring`]) has the same bits, but on GPUs where a library computes it together with the bias's.
//! - A row's result depends only on that row (and on parameters): in bf16 on the CPU to the bit. In fp32 the order in which products are summed may depend on
//!   their shapes, so the same shapes give the same bits, but other numbers of rows may not.
//! - Memory is not cleared before results are written (but in debug builds, which fill it with NaN): a process that keeps its heap (`brigade_cpu::keep_heap`) gets few fresh pages
//!   after its first steps.

mod activation;
mod attention;
mod autodiff;
mod cross_entropy;
#[cfg(feature = "cube")]
mod cube;
mod dropout;
mod embedding;
mod feed_forward;
mod fused;
mod gradients;
mod host;
mod linear;
mod mask;
mod norm;
mod optimizer;
mod rotary;

pub use activation::{ActivationFunction, activate, gated};
pub use attention::{
    attention, attention_packed, attention_packed_with_dropout, attention_through, attention_with_dropout,
    soft_capped,
};
pub use autodiff::function::{Function, apply_function};
pub use autodiff::fusion::set_fused;
pub use cross_entropy::{CrossEntropyConfig, cross_entropy, linear_cross_entropy};
#[cfg(feature = "cube")]
pub use cube::{Epilogue, MatrixProducts, Product, trust_software, use_products};
pub use dropout::{DropoutMask, draw_seed, dropout};
pub use embedding::embedding;
pub use feed_forward::feed_forward;
pub use fused::{is_fused, is_fused_on_cpu};
pub use gradients::deferred::{DeferredGradient, DeferredGradients, deferring};
pub use gradients::injected::with_gradient;
pub use host::cast;
pub use linear::{Weight, linear, linear_activation, linear_residual};
pub use mask::Mask;
pub use norm::{layer_norm, rms_norm, rms_norm_above_one};
pub use optimizer::{
    AdamW, AdamWConfig, Lion, LionConfig, ScaledStep, Sgd, SgdConfig, SgdState, StepRun, chunk_square_sums,
    square_sums, unwritten,
};
pub use rotary::rotary;
