//! Number types.

use burn::tensor::FloatDType;
use serde::{Deserialize, Serialize};

/// A number type of floats. Master weights, the optimizer and sums of gradients over micro-batches are always fp32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 32 bits.
    #[default]
    #[serde(rename = "fp32", alias = "f32")]
    F32,
    /// 16 bits: bfloat16.
    Bf16,
}

impl Dtype {
    pub(crate) fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// Mixed precision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Precision {
    /// Parameters and activations in forward and backward, but for parameters that a block
    /// [keeps in fp32](crate::Block::keep_in_f32).
    pub compute: Dtype,
    /// Gradients while they are summed over ranks.
    pub reduce: Dtype,
}
