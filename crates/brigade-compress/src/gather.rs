//! How parameters travel when they are gathered.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Codec, Quantizer, Rounding};

/// What parameters travel as when ranks gather each other's shards: ZeRO++'s quantised weights (Wang et al., "ZeRO++: extremely efficient
/// collective communication for giant model training", 2023). Rounding is to nearest, and the fp32 masters lose nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GatherCodes {
    /// As they are.
    #[default]
    None,
    /// [`Quantizer`] of 8 bits.
    Int8,
    /// [`Quantizer`] of 4 bits.
    Int4,
}

impl GatherCodes {
    /// Numbers that share a scale.
    pub const BLOCK: usize = 256;

    /// What makes the codes, if there are any.
    pub const fn codec(self) -> Option<Quantizer> {
        match self {
            Self::None => None,
            Self::Int8 => Some(Quantizer::int8(Rounding::Nearest, Self::BLOCK)),
            Self::Int4 => Some(Quantizer::int4(Rounding::Nearest, Self::BLOCK)),
        }
    }

    /// Bytes of `count` numbers, which are whole blocks, if they travel as codes.
    pub fn bytes(self, count: usize) -> Option<u64> {
        self.codec().map(|codec| codec.bytes(count) as u64)
    }
}

impl fmt::Display for GatherCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        })
    }
}
