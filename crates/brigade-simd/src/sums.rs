//! Sums of values, and of their squares.

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::{accumulate, check_length};
use crate::slices::{for_each_in_chains, for_each_vector, no_sums, total};

/// `sums ← sums + x`.
///
/// # Panics
/// If `x` is not as long as `sums`.
pub fn add<T: Element>(x: &[T], sums: &mut [f32]) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, x: &[T], sums: &mut [f32]) {
        for_each_vector(
            simd,
            (x, sums),
            #[inline(always)]
            |(x, sums)| accumulate(simd, sums, T::load(simd, x)),
        );
    }
    check_length("x", x.len(), sums.len());
    dispatch!(pass[T: Element](x: &[T], sums: &mut [f32]) -> ())
}

/// The sum of squares of each `chunk` elements of `x`, of which the last are padded with zeros, into its place in `sums`.
///
/// # Panics
/// If `sums` does not have an element for each chunk, or `chunk` is 0.
pub fn chunk_square_sums<T: Element>(x: &[T], chunk: usize, sums: &mut [f32]) {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, x: &[T], chunk: usize, to: &mut [f32]) {
        for (x, to) in x.chunks_exact(chunk).zip(to) {
            let mut sums = no_sums(simd);
            for_each_in_chains(
                simd,
                x,
                #[inline(always)]
                |chain, x| {
                    let x = T::load(simd, x);
                    sums[chain] = simd.mul_add_f32s(x, x, sums[chain]);
                },
            );
            *to = total(simd, sums);
        }
    }
    check_length("sums", sums.len(), x.len().div_ceil(chunk));
    let rest = x.chunks_exact(chunk).remainder();
    {
        let sums = &mut *sums;
        dispatch!(pass[T: Element](x: &[T], chunk: usize, sums: &mut [f32]) -> ());
    }
    if let (false, Some(last)) = (rest.is_empty(), sums.last_mut()) {
        // As a whole chunk, so that zeros after it change nothing.
        let mut padded = vec![T::ZERO; chunk];
        padded[..rest.len()].copy_from_slice(rest);
        let (x, sums) = (padded.as_slice(), std::slice::from_mut(last));
        dispatch!(pass[T: Element](x: &[T], chunk: usize, sums: &mut [f32]) -> ());
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::arch::tests::on_each;
    use crate::testing::numbers;

    fn check<T: Element>() {
        for length in [0, 1, 15, 64, 255, 256, 257, 1000] {
            let x = numbers::<T>(length, 5, 3.0);
            let wide: Vec<f64> = x.iter().map(|x| f64::from(x.to_f32())).collect();
            on_each(|kind| {
                let mut sums = vec![0.5; length];
                add(&x, &mut sums);
                assert!(sums.iter().zip(&wide).all(|(sum, x)| *sum == (0.5 + x) as f32), "{kind:?}");
                let mut squares = vec![7.0; length.div_ceil(256)];
                chunk_square_sums(&x, 256, &mut squares);
                for (found, x) in squares.iter().zip(wide.chunks(256)) {
                    let exact: f64 = x.iter().map(|x| x * x).sum();
                    assert!(
                        (f64::from(*found) - exact).abs() <= 1e-6 * exact,
                        "{kind:?}: {found} for {exact}"
                    );
                }
                let mut padded = x.clone();
                padded.resize(length.next_multiple_of(256), T::ZERO);
                let mut whole = squares.clone();
                chunk_square_sums(&padded, 256, &mut whole);
                assert_eq!(whole, squares, "{kind:?}");
            });
        }
    }

    #[test]
    fn near_the_truth() {
        check::<f32>();
        check::<bf16>();
    }

    #[test]
    #[should_panic(expected = "`sums` must have 2 elements, but has 1")]
    fn lengths_must_fit() {
        chunk_square_sums(&[1f32; 5], 4, &mut [0.0]);
    }
}
