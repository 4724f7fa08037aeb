//! Sums of squares of parts of a slice.

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::check_length;

/// Sums that are added in a tree at the end.
const LANES: usize = 64;

/// The sum of squares of each `chunk` elements of `x`, in `f32`; of the last, as if zeros followed. It has the same bits on every
/// processor.
///
/// # Panics
/// If `chunk` is 0, or `sums` does not have an element for each chunk of `x`, the last of which may be shorter.
pub fn sums_of_squares<T: Element>(x: &[T], chunk: usize, sums: &mut [f32]) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(_simd: S, x: &[T], chunk: usize, sums: &mut [f32]) {
        for (x, sum) in x.chunks(chunk).zip(sums) {
            let mut lanes = [0f32; LANES];
            let (whole, rest) = x.as_chunks::<LANES>();
            for part in whole {
                for (lane, value) in lanes.iter_mut().zip(part) {
                    let value = value.to_f32();
                    *lane = value.mul_add(value, *lane);
                }
            }
            for (lane, value) in lanes.iter_mut().zip(rest) {
                let value = value.to_f32();
                *lane = value.mul_add(value, *lane);
            }
            *sum = tree(lanes);
        }
    }
    assert!(chunk > 0, "`chunk` must be at least 1");
    check_length("sums", sums.len(), x.len().div_ceil(chunk));
    dispatch!(pass[T: Element](x: &[T], chunk: usize, sums: &mut [f32]) -> ())
}

/// The sum of all lanes: of each half with the other, until one is left.
#[inline(always)]
fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        half /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::arch::tests::on_each;
    use crate::testing::{numbers, units};

    fn check<T: Element>(length: usize, chunk: usize) {
        let x = numbers::<T>(length, length as u64, 3.0);
        let mut padded = x.clone();
        padded.resize(length.next_multiple_of(chunk), T::ZERO);
        let mut first = vec![0.0; length.div_ceil(chunk)];
        sums_of_squares(&x, chunk, &mut first);
        for (x, sum) in x.chunks(chunk).zip(&first) {
            let exact: f64 = x.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
            assert!(units(*sum, exact) <= 2.5, "{sum} is {} units from {exact}", units(*sum, exact));
        }
        on_each(|kind| {
            let (mut there, mut of_padded) = (vec![1.0; first.len()], vec![1.0; first.len()]);
            sums_of_squares(&x, chunk, &mut there);
            sums_of_squares(&padded, chunk, &mut of_padded);
            assert_eq!(there, first, "{kind:?}");
            assert_eq!(of_padded, first, "zeros change nothing");
        });
    }

    #[test]
    fn chunks_are_near_the_truth_and_alike_everywhere() {
        for length in [0, 1, 63, 64, 65, 255, 256, 257, 1000, 5000] {
            for chunk in [1, 7, 256] {
                check::<f32>(length, chunk);
                check::<bf16>(length, chunk);
            }
        }
    }

    #[test]
    fn overflow_and_not_a_number_are_seen() {
        let mut sums = [0.0; 3];
        sums_of_squares(&[1e30, f32::NAN, 1.0, f32::INFINITY, 2.0], 2, &mut sums);
        assert!(sums[0].is_nan());
        assert_eq!(sums[1..], [f32::INFINITY, 4.0]);
    }

    #[test]
    #[should_panic(expected = "`sums` must have 2 elements, but has 1")]
    fn lengths_must_fit() {
        sums_of_squares(&[1f32; 5], 4, &mut [0.0]);
    }
}
