//! Numbers of 16 bits.

use brigade_simd::codes::largest_size;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Codec;

/// bfloat16, rounded to nearest.
#[derive(Debug, Clone, Copy)]
pub struct Bf16Codec;

/// IEEE 754 binary16, rounded to nearest, of numbers that are all multiplied by one power of two, so that the largest is near the end of the
/// range: those 2³⁹ times smaller are not yet zero. A code begins with the power.
#[derive(Debug, Clone, Copy)]
pub struct F16Codec;

/// Numbers that are converted at a time.
const CHUNK: usize = 256;

/// Bytes of the power of two, as bfloat16.
const SCALE: usize = 2;

/// The exponent of the largest number of a code, below which rounding cannot make it infinite.
const LARGEST_EXPONENT: i32 = 14;

/// The largest exponent of a scale, whose inverse is then no subnormal number.
const LARGEST_OF_SCALE: i32 = 126;

impl Codec for Bf16Codec {
    fn bytes(&self, count: usize) -> usize {
        2 * count
    }

    fn encode(&self, values: &[f32], _: u64, code: &mut [u8]) {
        let mut halves = [bf16::ZERO; CHUNK];
        for (values, code) in values.chunks(CHUNK).zip(code.chunks_mut(2 * CHUNK)) {
            let halves = &mut halves[..values.len()];
            brigade_simd::convert(values, halves);
            for (half, code) in halves.iter().zip(code.as_chunks_mut().0) {
                *code = half.to_le_bytes();
            }
        }
    }

    fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
        let mut halves = [bf16::ZERO; CHUNK];
        for (values, code) in values.chunks_mut(CHUNK).zip(code.chunks(2 * CHUNK)) {
            let halves = &mut halves[..values.len()];
            for (half, code) in halves.iter_mut().zip(code.as_chunks().0) {
                *half = bf16::from_le_bytes(*code);
            }
            brigade_simd::convert(&*halves, values);
        }
    }

    fn needs_error_feedback(&self) -> bool {
        false
    }
}

impl Codec for F16Codec {
    fn bytes(&self, count: usize) -> usize {
        if count == 0 { 0 } else { SCALE + 2 * count }
    }

    fn encode(&self, values: &[f32], _: u64, code: &mut [u8]) {
        let Some((first, code)) = code.split_first_chunk_mut::<SCALE>() else { return };
        let scale = scale_of(values);
        *first = bf16::from_f32(scale).to_le_bytes();
        let (mut scaled, mut halves) = ([0.0; CHUNK], [f16::ZERO; CHUNK]);
        for (values, code) in values.chunks(CHUNK).zip(code.chunks_mut(2 * CHUNK)) {
            let (scaled, halves) = (&mut scaled[..values.len()], &mut halves[..values.len()]);
            scaled.iter_mut().zip(values).for_each(|(scaled, value)| *scaled = value * scale);
            halves.convert_from_f32_slice(scaled);
            for (half, code) in halves.iter().zip(code.as_chunks_mut().0) {
                *code = half.to_le_bytes();
            }
        }
    }

    fn decode(&self, code: &[u8], _: u64, values: &mut [f32]) {
        let Some((first, code)) = code.split_first_chunk::<SCALE>() else { return };
        let inverse = 1.0 / bf16::from_le_bytes(*first).to_f32();
        let mut halves = [f16::ZERO; CHUNK];
        for (values, code) in values.chunks_mut(CHUNK).zip(code.chunks(2 * CHUNK)) {
            let halves = &mut halves[..values.len()];
            for (half, code) in halves.iter_mut().zip(code.as_chunks().0) {
                *half = f16::from_le_bytes(*code);
            }
            halves.convert_to_f32_slice(values);
            values.iter_mut().for_each(|value| *value *= inverse);
        }
    }

    fn needs_error_feedback(&self) -> bool {
        false
    }
}

/// What numbers are multiplied by; 1 if one of them is not finite, which is then seen.
fn scale_of(values: &[f32]) -> f32 {
    let largest = largest_size(values);
    if !largest.is_finite() {
        return 1.0;
    }
    let exponent = (largest.to_bits() >> 23) as i32 - 127;
    power_of_two((LARGEST_EXPONENT - exponent).clamp(-LARGEST_OF_SCALE, LARGEST_OF_SCALE))
}

/// 2 to an exponent from -126 to 127.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_rounded_as_by_itself() {
        let mut values: Vec<f32> = (0..=u32::MAX).step_by(1_000_003).map(f32::from_bits).collect();
        values.extend([f32::NAN, -f32::NAN, f32::INFINITY, 65519.0, 65520.0, -0.0]);
        // Beside numbers that are not finite, none are scaled.
        let (mut bf16s, mut f16s) = (vec![0; 2 * values.len()], vec![0; F16Codec.bytes(values.len())]);
        Bf16Codec.encode(&values, 0, &mut bf16s);
        F16Codec.encode(&values, 0, &mut f16s);
        let codes = bf16s.as_chunks::<2>().0.iter().zip(f16s[SCALE..].as_chunks::<2>().0);
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

    #[test]
    fn numbers_of_any_size_are_as_close_in_fp16() {
        for exponent in [-100, -60, -26, 0, 14, 40, 127] {
            let unit = power_of_two(exponent);
            let values = [1.0, -1.5, 0.3, -1e-4, 1e-7, 0.0].map(|value| value * unit);
            let mut code = vec![0; F16Codec.bytes(values.len())];
            F16Codec.encode(&values, 0, &mut code);
            let mut back = [f32::NAN; 6];
            F16Codec.decode(&code, 0, &mut back);
            for (value, back) in values.iter().zip(back) {
                assert!((back - value).abs() <= value.abs() / 2048.0, "{back:e} of {value:e}");
            }
        }
    }
}
