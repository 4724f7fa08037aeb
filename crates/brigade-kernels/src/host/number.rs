//! The types of numbers that operations are fused for.

use brigade_simd::Factor;
use burn::tensor::{Element, bf16};

/// A type of the values of tensors. Sums are `f32`.
pub(crate) trait Number: Factor + Element {}

impl Number for f32 {}
impl Number for bf16 {}
