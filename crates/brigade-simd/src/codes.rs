//! What codes of numbers are made of: integers of 8 and 4 bits, signs, and the largest size of some numbers.
//!
//! All results are element-wise, or a largest number, so no kind of processor changes their bits. The loops are plain ones, compiled for
//! each kind of SIMD.

use pulp::Simd;

use crate::arch::dispatch;
use crate::rows::check_length;

/// All bits but the sign: read as an integer, they have the order of the numbers' sizes, with NaNs above all.
const SIZE: u32 = u32::MAX >> 1;

/// The largest size of some numbers, 0 if there are none; a NaN if one of them is.
pub fn largest_size(x: &[f32]) -> f32 {
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[f32]) -> f32 {
        f32::from_bits(x.iter().fold(0, |largest: u32, x| largest.max(x.to_bits() & SIZE)))
    }
    dispatch!(pass(x: &[f32]) -> f32)
}

/// The integer nearest to `x · factor`, ties to even, clamped to ±`largest`; 0 for a NaN.
#[inline(always)]
#[allow(clippy::manual_clamp, reason = "`clamp` may panic, which keeps loops from being vectorized")]
fn integer(x: f32, factor: f32, largest: f32) -> u8 {
    let steps = (x * factor).round_ties_even();
    let steps = if steps < -largest { -largest } else { steps };
    let steps = if steps > largest { largest } else { steps };
    (steps as i32) as u8
}

/// `out ← ⌊factor · x⌉` as integers of 8 bits in two's complement, from `-largest` to `largest`, which is at most 127. Halves are rounded to the even
/// integer, and a NaN becomes 0.
///
/// # Panics
/// If `out` is not as long as `x`.
pub fn round_to_bytes(x: &[f32], factor: f32, largest: f32, out: &mut [u8]) {
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[f32], factor: f32, largest: f32, out: &mut [u8]) {
        x.iter().zip(out).for_each(|(x, out)| *out = integer(*x, factor, largest));
    }
    check_length("out", out.len(), x.len());
    dispatch!(pass(x: &[f32], factor: f32, largest: f32, out: &mut [u8]) -> ())
}

/// As [`round_to_bytes`] with 4 bits, of which the first of two numbers has the lower ones; `largest` is at most 7. Where the last has no second, the
/// upper bits are 0.
///
/// # Panics
/// If `out` has not one byte for two numbers of `x`.
pub fn round_to_nibbles(x: &[f32], factor: f32, largest: f32, out: &mut [u8]) {
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[f32], factor: f32, largest: f32, out: &mut [u8]) {
        let (pairs, last) = x.as_chunks::<2>();
        let (whole, rest) = out.split_at_mut(pairs.len());
        for ([low, high], out) in pairs.iter().zip(whole) {
            *out = integer(*low, factor, largest) & 15 | integer(*high, factor, largest) << 4;
        }
        rest.iter_mut().zip(last).for_each(|(out, low)| *out = integer(*low, factor, largest) & 15);
    }
    check_length("out", out.len(), x.len().div_ceil(2));
    dispatch!(pass(x: &[f32], factor: f32, largest: f32, out: &mut [u8]) -> ())
}

/// `out ← factor · x`, of integers of 8 bits in two's complement.
///
/// # Panics
/// If `out` is not as long as `x`.
pub fn scale_bytes(x: &[u8], factor: f32, out: &mut [f32]) {
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[u8], factor: f32, out: &mut [f32]) {
        x.iter().zip(out).for_each(|(x, out)| *out = f32::from(x.cast_signed()) * factor);
    }
    check_length("out", out.len(), x.len());
    dispatch!(pass(x: &[u8], factor: f32, out: &mut [f32]) -> ())
}

/// As [`scale_bytes`], of what [`round_to_nibbles`] makes.
///
/// # Panics
/// If `x` has not one byte for two numbers of `out`.
pub fn scale_nibbles(x: &[u8], factor: f32, out: &mut [f32]) {
    /// Shifted to the top and back, which extends the sign.
    #[inline(always)]
    fn number(shifted: u8, factor: f32) -> f32 {
        f32::from(shifted.cast_signed() >> 4) * factor
    }
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[u8], factor: f32, out: &mut [f32]) {
        let (pairs, last) = out.as_chunks_mut::<2>();
        let (whole, rest) = x.split_at(pairs.len());
        for (x, out) in whole.iter().zip(pairs) {
            *out = [number(x << 4, factor), number(*x, factor)];
        }
        last.iter_mut().zip(rest).for_each(|(out, x)| *out = number(x << 4, factor));
    }
    check_length("x", x.len(), out.len().div_ceil(2));
    dispatch!(pass(x: &[u8], factor: f32, out: &mut [f32]) -> ())
}

/// The signs of numbers, eight in a byte from its lowest bit on: 1 where one is negative. Bits that no number has are 0.
///
/// # Panics
/// If `out` has not one byte for eight numbers of `x`.
pub fn signs(x: &[f32], out: &mut [u8]) {
    #[inline(always)]
    fn byte(x: &[f32]) -> u8 {
        x.iter().enumerate().fold(0, |byte, (place, x)| byte | ((x.to_bits() >> 31) << place) as u8)
    }
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[f32], out: &mut [u8]) {
        let (groups, last) = x.as_chunks::<8>();
        let (whole, rest) = out.split_at_mut(groups.len());
        groups.iter().zip(whole).for_each(|(x, out)| *out = byte(x));
        rest.iter_mut().for_each(|out| *out = byte(last));
    }
    check_length("out", out.len(), x.len().div_ceil(8));
    dispatch!(pass(x: &[f32], out: &mut [u8]) -> ())
}

/// `out ← ±size` by the signs that [`signs`] makes.
///
/// # Panics
/// If `x` has not one byte for eight numbers of `out`.
pub fn with_signs(x: &[u8], size: f32, out: &mut [f32]) {
    #[inline(always)]
    fn numbers(x: u8, size: f32, out: &mut [f32]) {
        let number = |place: usize| f32::from_bits(size.to_bits() ^ (u32::from(x) >> place & 1) << 31);
        out.iter_mut().enumerate().for_each(|(place, out)| *out = number(place));
    }
    #[inline(always)]
    fn pass<S: Simd>(_simd: S, x: &[u8], size: f32, out: &mut [f32]) {
        let (groups, last) = out.as_chunks_mut::<8>();
        let (whole, rest) = x.split_at(groups.len());
        whole.iter().zip(groups).for_each(|(x, out)| numbers(*x, size, out));
        rest.iter().for_each(|x| numbers(*x, size, last));
    }
    check_length("x", x.len(), out.len().div_ceil(8));
    dispatch!(pass(x: &[u8], size: f32, out: &mut [f32]) -> ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::tests::on_each;
    use crate::testing::numbers;

    /// Halves between integers, and what is not finite, among other numbers.
    fn values(count: usize) -> Vec<f32> {
        let mut values: Vec<f32> = numbers(count, 3, 200.0);
        let special =
            [0.5, 1.5, -2.5, 126.5, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, 1e-45];
        for (place, value) in values.iter_mut().enumerate().filter(|(place, _)| place % 3 == 0) {
            *value = special[place / 3 % special.len()];
        }
        values
    }

    const LENGTHS: [usize; 7] = [0, 1, 7, 8, 33, 256, 1001];

    #[test]
    fn integers_are_those_of_one_number_at_a_time() {
        for (length, factor) in
            LENGTHS.into_iter().flat_map(|length| [(length, 1.0), (length, 0.037), (length, 0.0)])
        {
            let x = values(length);
            let one = |x: f32, largest: f32| (x * factor).round_ties_even().clamp(-largest, largest) as i8;
            let bytes: Vec<i8> = x.iter().map(|x| one(*x, 127.0)).collect();
            let nibbles: Vec<i8> = x.iter().map(|x| one(*x, 7.0)).collect();
            on_each(|kind| {
                let (mut out, mut back) = (vec![0xaa; length], vec![9.0; length]);
                round_to_bytes(&x, factor, 127.0, &mut out);
                assert!(out.iter().map(|x| x.cast_signed()).eq(bytes.iter().copied()), "{kind:?}, {length}");
                scale_bytes(&out, 0.3, &mut back);
                assert!(back.iter().zip(&bytes).all(|(a, b)| a.to_bits() == (f32::from(*b) * 0.3).to_bits()));
                let mut out = vec![0xaa; length.div_ceil(2)];
                round_to_nibbles(&x, factor, 7.0, &mut out);
                scale_nibbles(&out, 0.3, &mut back);
                let same =
                    back.iter().zip(&nibbles).all(|(a, b)| a.to_bits() == (f32::from(*b) * 0.3).to_bits());
                assert!(same, "{kind:?}, {length}");
                assert!(length % 2 == 0 || out[length / 2] < 16);
            });
        }
    }

    #[test]
    fn signs_are_those_of_one_number_at_a_time() {
        for length in LENGTHS {
            let x = values(length);
            on_each(|kind| {
                let (mut out, mut back) = (vec![0xaa; length.div_ceil(8)], vec![9.0; length]);
                signs(&x, &mut out);
                let bit = |place: usize| place < length && x[place].is_sign_negative();
                assert!(
                    (0..8 * out.len()).all(|place| (out[place / 8] >> (place % 8) & 1 == 1) == bit(place)),
                    "{kind:?}"
                );
                with_signs(&out, 0.25, &mut back);
                let expected = x.iter().map(|x| if x.is_sign_negative() { -0.25 } else { 0.25 });
                assert!(back.iter().copied().eq(expected), "{kind:?}, {length}");
            });
        }
    }

    #[test]
    fn the_largest_size_sees_what_is_no_number() {
        on_each(|_| {
            assert_eq!(largest_size(&[]), 0.0);
            assert_eq!(largest_size(&[-3.0, 2.0, -0.0]), 3.0);
            assert_eq!(
                largest_size(&numbers::<f32>(1001, 5, 2.0)),
                numbers::<f32>(1001, 5, 2.0).iter().fold(0.0, |a, b| b.abs().max(a))
            );
            assert_eq!(largest_size(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
            assert!(largest_size(&[f32::INFINITY, -f32::NAN, 1.0]).is_nan());
        });
    }
}
