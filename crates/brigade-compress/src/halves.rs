//! Numbers of 16 bits.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Codec;

/// bfloat16, rounded to nearest.
#[derive(Debug, Clone, Copy)]
pub struct Bf16Codec;

/// IEEE 754 binary16, rounded to nearest. What is too large becomes infinite.
#[derive(Debug, Clone, Copy)]
pub struct F16Codec;

/// Numbers that are converted at a time.
const CHUNK: usize = 256;

macro_rules! halves {
    ($codec:ty, $half:ty, $narrow:expr, $widen:expr) => {
        impl Codec for $codec {
            fn bytes(&self, count: usize) -> usize {
                2 * count
            }

            fn encode(&self, values: &[f32], _: u64, code: &mut [u8]) {
                let mut halves = [<$half>::ZERO; CHUNK];
                for (values, code) in values.chunks(CHUNK).zip(code.chunks_mut(2 * CHUNK)) {
                    let halves = &mut halves[..values.len()];
                    $narrow(values, halves);
                    for (half, code) in halves.iter().zip(code.as_chunks_mut().0) {
                        *code = half.to_le_bytes();
                    }
                }
            }

            fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
                let mut halves = [<$half>::ZERO; CHUNK];
                for (values, code) in values.chunks_mut(CHUNK).zip(code.chunks(2 * CHUNK)) {
                    let halves = &mut halves[..values.len()];
                    for (half, code) in halves.iter_mut().zip(code.as_chunks().0) {
                        *half = <$half>::from_le_bytes(*code);
                    }
                    $widen(&*halves, values);
                }
            }

            fn needs_error_feedback(&self) -> bool {
                false
            }
        }
    };
}
halves!(Bf16Codec, bf16, brigade_simd::convert, brigade_simd::convert);
halves!(
    F16Codec,
    f16,
    |values: &[f32], halves: &mut [f16]| halves.convert_from_f32_slice(values),
    |halves: &[f16], values: &mut [f32]| halves.convert_to_f32_slice(values)
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_rounded_as_by_itself() {
        let mut values: Vec<f32> = (0..=u32::MAX).step_by(1_000_003).map(f32::from_bits).collect();
        values.extend([f32::NAN, -f32::NAN, f32::INFINITY, 65519.0, 65520.0, -0.0]);
        let [mut bf16s, mut f16s] = [(); 2].map(|()| vec![0; 2 * values.len()]);
        Bf16Codec.encode(&values, 0, &mut bf16s);
        F16Codec.encode(&values, 0, &mut f16s);
        let codes = bf16s.as_chunks::<2>().0.iter().zip(f16s.as_chunks::<2>().0);
        for (value, (bf, f)) in values.iter().zip(codes) {
            assert_eq!(bf16::from_le_bytes(*bf).to_bits(), bf16::from_f32(*value).to_bits(), "{value:e}");
            assert_eq!(f16::from_le_bytes(*f).to_bits(), f16::from_f32(*value).to_bits(), "{value:e}");
        }
        let mut back = vec![0.0; values.len()];
        F16Codec.decode(&f16s, 0, &mut back);
        for (value, back) in values.iter().zip(back) {
            assert_eq!(back.to_bits(), f16::from_f32(*value).to_f32().to_bits(), "{value:e}");
        }
    }
}
