//! Codes of blocks with one scale each.

use brigade_random::keyed;
use brigade_simd::codes;
use serde::{Deserialize, Serialize};

use crate::Codec;

/// How a number between two steps is rounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// To the nearer one, ties to the even one.
    #[default]
    Nearest,
    /// To either, with the probability that makes the mean right.
    Stochastic,
}

/// Signed integers of 8 or 4 bits, in blocks with a scale of their own, as ZeRO++ quantises gradients (Wang et al., 2023). The largest
/// number of a block has the largest integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantizer {
    bits: u32,
    rounding: Rounding,
    block: usize,
}

/// Signs, in blocks with the mean of their sizes, as 1-bit Adam (Tang et al., 2021) and signSGD with error feedback send them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneBit {
    /// Numbers of a block, a multiple of 8.
    pub block: usize,
}

/// Bytes of a scale, with which each block's code begins.
const SCALE: usize = 4;

impl Quantizer {
    /// Integers from -127 to 127, in blocks of this many numbers.
    pub const fn int8(rounding: Rounding, block: usize) -> Self {
        Self { bits: 8, rounding, block }
    }

    /// Integers from -7 to 7, in blocks of this many numbers, which are even.
    pub const fn int4(rounding: Rounding, block: usize) -> Self {
        Self { bits: 4, rounding, block }
    }

    fn largest(self) -> f32 {
        ((1 << (self.bits - 1)) - 1) as f32
    }

    /// Integers of some numbers by either rounding, in the places from `first` on.
    fn draw(self, values: &[f32], inverse: f32, (key, first): (u64, usize), integers: &mut [u8]) {
        let integer = |(place, value): (usize, &f32)| {
            let steps = value * inverse;
            // 24 bits, which a float holds exactly.
            let drawn = (keyed(key, (first + place) as u64) >> 40) as f32 / (1 << 24) as f32;
            let below = steps.floor();
            let rounded = below + f32::from(u8::from(steps - below > drawn));
            (rounded.clamp(-self.largest(), self.largest()) as i8).cast_unsigned()
        };
        let mut drawn = values.iter().enumerate().map(integer);
        match self.bits {
            8 => integers.iter_mut().zip(drawn).for_each(|(code, integer)| *code = integer),
            _ => {
                for code in integers {
                    let low = drawn.next().unwrap_or(0) & 15;
                    *code = low | drawn.next().unwrap_or(0) << 4;
                }
            }
        }
    }
}

impl Codec for Quantizer {
    fn bytes(&self, count: usize) -> usize {
        let block = |count: usize| SCALE + (count * self.bits as usize).div_ceil(8);
        count / self.block * block(self.block)
            + if count.is_multiple_of(self.block) { 0 } else { block(count % self.block) }
    }

    fn encode(&self, values: &[f32], key: u64, code: &mut [u8]) {
        let codes = code.chunks_mut(self.bytes(self.block));
        for (block, (values, code)) in values.chunks(self.block).zip(codes).enumerate() {
            let largest = codes::largest_size(values);
            let scale = if largest.is_finite() { largest / self.largest() } else { f32::NAN };
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            // A scale so small that its inverse is infinite is as good as none.
            let inverse = if inverse.is_finite() { inverse } else { 0.0 };
            let (first, integers) = code.split_at_mut(SCALE);
            first.copy_from_slice(&scale.to_le_bytes());
            match (self.rounding, self.bits) {
                (Rounding::Stochastic, _) => self.draw(values, inverse, (key, block * self.block), integers),
                (_, 8) => codes::round_to_bytes(values, inverse, self.largest(), integers),
                _ => codes::round_to_nibbles(values, inverse, self.largest(), integers),
            }
        }
    }

    fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
        let codes = code.chunks(self.bytes(self.block));
        for (values, code) in values.chunks_mut(self.block).zip(codes) {
            let (scale, integers) = read_scale(code);
            match self.bits {
                8 => codes::scale_bytes(integers, scale, values),
                _ => codes::scale_nibbles(integers, scale, values),
            }
        }
    }

    fn needs_error_feedback(&self) -> bool {
        self.rounding == Rounding::Nearest
    }
}

impl Codec for OneBit {
    fn bytes(&self, count: usize) -> usize {
        count.div_ceil(self.block) * SCALE
            + count / self.block * (self.block / 8)
            + (count % self.block).div_ceil(8)
    }

    fn encode(&self, values: &[f32], _: u64, code: &mut [u8]) {
        for (values, code) in values.chunks(self.block).zip(code.chunks_mut(SCALE + self.block / 8)) {
            let sum: f64 = values.iter().map(|value| f64::from(value.abs())).sum();
            let (first, signs) = code.split_at_mut(SCALE);
            first.copy_from_slice(&((sum / values.len() as f64) as f32).to_le_bytes());
            codes::signs(values, signs);
        }
    }

    fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
        for (values, code) in values.chunks_mut(self.block).zip(code.chunks(SCALE + self.block / 8)) {
            let (scale, signs) = read_scale(code);
            codes::with_signs(signs, scale, values);
        }
    }

    fn needs_error_feedback(&self) -> bool {
        true
    }
}

fn read_scale(code: &[u8]) -> (f32, &[u8]) {
    match code.split_first_chunk() {
        Some((scale, rest)) => (f32::from_le_bytes(*scale), rest),
        None => (f32::NAN, code),
    }
}
