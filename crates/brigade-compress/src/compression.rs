//! How gradients travel, as a value of settings.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::power_sgd::{Matrix, outside, power_sgd_messages};
use crate::{Bf16Codec, Codec, F16Codec, OneBit, PowerSgd, Quantizer, RandomK, Rounding, TopK};

/// What gradients travel as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// As they are.
    #[default]
    None,
    /// [`Bf16Codec`].
    Bf16,
    /// [`F16Codec`].
    Fp16,
    /// [`Quantizer`] of 8 bits.
    Int8,
    /// [`Quantizer`] of 4 bits.
    Int4,
    /// [`PowerSgd`](crate::PowerSgd).
    PowerSgd,
    /// [`TopK`].
    TopK,
    /// [`RandomK`].
    RandomK,
    /// [`OneBit`].
    OneBit,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 9] = [
        Self::None,
        Self::Bf16,
        Self::Fp16,
        Self::Int8,
        Self::Int4,
        Self::PowerSgd,
        Self::TopK,
        Self::RandomK,
        Self::OneBit,
    ];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::PowerSgd => "powersgd",
            Self::TopK => "topk",
            Self::RandomK => "randomk",
            Self::OneBit => "onebit",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|method| method.name() == text)
            .ok_or_else(|| format!("it must be one of {}", names()))
    }
}

/// How gradients travel: a method, and what the methods need to know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compression {
    /// What they travel as.
    pub method: Method,
    /// For integers and signs: numbers that have a scale together; 0 for 256 integers, or 1024 signs.
    pub block_size: usize,
    /// For integers: how they are rounded. Stochastic rounding needs no error feedback.
    pub rounding: Rounding,
    /// For [`TopK`] and [`RandomK`]: the share of the numbers that is sent, above 0 and at most 1.
    pub ratio: f64,
    /// For [`PowerSgd`](crate::PowerSgd): columns of a factor.
    pub rank: usize,
    /// Steps at the beginning in which gradients travel as they are.
    pub warmup_steps: u64,
}

impl Default for Compression {
    fn default() -> Self {
        Self {
            method: Method::None,
            block_size: 0,
            rounding: Rounding::Nearest,
            ratio: 0.01,
            rank: 4,
            warmup_steps: 0,
        }
    }
}

/// What is wrong with a [`Compression`].
#[derive(Debug, Clone, PartialEq, Error)]
pub enum CompressionError {
    /// Not a size of blocks.
    #[error("it must be a multiple of 8 from 8 to 65536, or 0 for the method's default; the nearest is {0}")]
    BlockSize(usize),
    /// Not a share.
    #[error("it must be above 0 and at most 1")]
    Ratio,
    /// Not a number of columns.
    #[error("it must be from 1 to 1024")]
    Rank,
}

impl Compression {
    /// Checks each number, also those that the method does not need.
    ///
    /// # Errors
    /// What is allowed, of the first that is wrong.
    pub fn check(&self) -> Result<(), CompressionError> {
        let Self { block_size, ratio, rank, .. } = *self;
        if block_size > 0 && !(block_size.is_multiple_of(8) && block_size <= 1 << 16) {
            let nearest = (block_size.min(1 << 16) + 4) / 8 * 8;
            return Err(CompressionError::BlockSize(nearest.max(8)));
        }
        if !(ratio > 0.0 && ratio <= 1.0) {
            return Err(CompressionError::Ratio);
        }
        if !(1..=1024).contains(&rank) {
            return Err(CompressionError::Rank);
        }
        Ok(())
    }

    /// The codec of the method; none for [`Method::None`] and [`Method::PowerSgd`].
    pub fn codec(&self) -> Option<Arc<dyn Codec>> {
        let Self { rounding, ratio: share, .. } = *self;
        let block = |usual: usize| if self.block_size == 0 { usual } else { self.block_size };
        Some(match self.method {
            Method::None | Method::PowerSgd => return None,
            Method::Bf16 => Arc::new(Bf16Codec),
            Method::Fp16 => Arc::new(F16Codec),
            Method::Int8 => Arc::new(Quantizer::int8(rounding, block(256))),
            Method::Int4 => Arc::new(Quantizer::int4(rounding, block(256))),
            Method::TopK => Arc::new(TopK { share }),
            Method::RandomK => Arc::new(RandomK { share }),
            Method::OneBit => Arc::new(OneBit { block: block(1024) }),
        })
    }

    /// Whether what is left out is kept for the next update.
    pub fn needs_error_feedback(&self) -> bool {
        self.method == Method::PowerSgd || self.codec().is_some_and(|codec| codec.needs_error_feedback())
    }
}

/// What the codes of one unit's gradient take of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that are kept from one update to the next.
    pub kept: u64,
    /// Bytes while a sum is on its way.
    pub in_flight: u64,
    /// What a sum sends.
    pub sends: Sends,
}

/// What a sum sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sends {
    /// To each other rank a code of this many bytes; and if the sums are sent, one more.
    Codes(u64),
    /// All-reduces of this many numbers in fp32, one after the other; none of no numbers.
    Factors([usize; 2]),
}

impl Compression {
    /// What it takes to add buffers of `count` numbers over `ranks` ranks, with slices of `slice` numbers; the same as
    /// [`CodedSum`](crate::CodedSum) and [`PowerSgd`](crate::PowerSgd) take. None if gradients travel as they are.
    pub fn cost(
        &self,
        ranks: usize,
        (slice, count): (usize, usize),
        sends_sums: bool,
        matrices: &[Matrix],
    ) -> Option<Cost> {
        let bytes = |numbers: usize| (size_of::<f32>() * numbers) as u64;
        let codec = match self.method {
            Method::None => return None,
            Method::PowerSgd => {
                let messages = power_sgd_messages(self.rank, count, matrices);
                let [first, second] = messages;
                let left = first - outside(self.rank, count, matrices);
                let errors = if PowerSgd::factors_any(self.rank, matrices) { 2 * count } else { 0 };
                let kept = bytes(errors + left + 2 * second);
                return Some(Cost {
                    kept,
                    in_flight: bytes(count + first + second),
                    sends: Sends::Factors(messages),
                });
            }
            _ => self.codec()?,
        };
        let code = codec.bytes(slice);
        let of_sums = usize::from(sends_sums && !codec.shares_key());
        let errors = if codec.needs_error_feedback() { ranks + of_sums } else { 0 };
        Some(Cost {
            kept: bytes(2 * errors * slice),
            in_flight: (ranks * code) as u64,
            sends: Sends::Codes(code as u64),
        })
    }
}
