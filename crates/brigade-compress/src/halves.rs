//! Numbers of 16 bits.

use half::{bf16, f16};

use crate::Codec;

/// bfloat16, rounded to nearest.
#[derive(Debug, Clone, Copy)]
pub struct Bf16Codec;

/// IEEE 754 binary16, rounded to nearest. What is too large becomes infinite.
#[derive(Debug, Clone, Copy)]
pub struct F16Codec;

macro_rules! halves {
    ($codec:ty, $half:ty) => {
        impl Codec for $codec {
            fn bytes(&self, count: usize) -> usize {
                2 * count
            }

            fn encode(&self, values: &[f32], _: u64, code: &mut [u8]) {
                for (value, code) in values.iter().zip(code.as_chunks_mut().0) {
                    *code = <$half>::from_f32(*value).to_le_bytes();
                }
            }

            fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
                for (value, code) in values.iter_mut().zip(code.as_chunks().0) {
                    *value = <$half>::from_le_bytes(*code).to_f32();
                }
            }

            fn needs_error_feedback(&self) -> bool {
                false
            }
        }
    };
}
halves!(Bf16Codec, bf16);
halves!(F16Codec, f16);
