//! Dropout, as a function of the place.

use pulp::Simd;

use crate::Element;
use crate::arch::dispatch;
use crate::rows::check_length;
use crate::slices::for_each_vector;

/// Elements whose factors are made at once.
const PIECE: usize = 512;

/// Dropout in training (Srivastava et al., "Dropout", 2014): each element of a matrix, such as an attention's probabilities of keys for each query, is dropped or kept by itself, as a
/// function of the seed, the row and the column; those that are kept grow in turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutMask {
    /// How likely one is dropped: from 0, where all are kept, to 1, where all become 0.
    pub probability: f32,
    /// Decides which are.
    pub seed: u64,
}

impl DropoutMask {
    /// What multiplies those that are kept: 0 where none is.
    ///
    /// # Panics
    /// If the probability is not between 0 and 1.
    pub fn factor(self) -> f32 {
        let probability = self.probability;
        assert!(
            (0.0..=1.0).contains(&probability),
            "the probability of dropout is {probability}, but must be between 0 and 1"
        );
        if probability < 1.0 { 1.0 / (1.0 - probability) } else { 0.0 }
    }

    /// What multiplies consecutive elements of a row from `first` on: 0 or the [`factor`](Self::factor).
    ///
    /// # Panics
    /// If the probability is not between 0 and 1.
    pub fn factors(self, row: usize, first: usize, factors: &mut [f32]) {
        #[inline(always)]
        fn pass<S: Simd>(_simd: S, key: [u32; 2], least: u32, kept: f32, factors: &mut [f32]) {
            for (index, factor) in (0..factors.len() as u32).zip(factors) {
                let drawn = scramble(scramble(key[0].wrapping_add(index)) ^ key[1]);
                *factor = if drawn < least { 0.0 } else { kept };
            }
        }
        let key = brigade_random::keyed(self.seed, row as u64);
        let key: [u32; 2] = [(key as u32).wrapping_add(first as u32), (key >> 32) as u32];
        let least = (f64::from(self.probability) * 2f64.powi(32)) as u32;
        let kept = self.factor();
        dispatch!(pass(key: [u32; 2], least: u32, kept: f32, factors: &mut [f32]) -> ());
    }

    /// The same of some rows, one after another.
    pub(crate) fn tile(self, first_row: usize, first_column: usize, columns: usize, factors: &mut [f32]) {
        for (index, factors) in factors.chunks_exact_mut(columns).enumerate() {
            self.factors(first_row + index, first_column, factors);
        }
    }

    /// `y ← x · factors`, plus `residual` if there is one, all as one row.
    ///
    /// # Panics
    /// If `y` or `residual` is not as long as `x`, or the probability is not between 0 and 1.
    pub fn apply<T: Element>(self, x: &[T], residual: Option<&[T]>, y: &mut [T]) {
        #[inline(always)]
        fn pass<S: Simd, T: Element>(simd: S, x: &[T], residual: Option<&[T]>, factors: &[f32], y: &mut [T]) {
            match residual {
                None => for_each_vector(
                    simd,
                    ((x, factors), y),
                    #[inline(always)]
                    |((x, factors), y)| {
                        let factors = f32::load(simd, factors);
                        T::store(simd, y, simd.mul_f32s(T::load(simd, x), factors));
                    },
                ),
                Some(residual) => for_each_vector(
                    simd,
                    (((x, residual), factors), y),
                    #[inline(always)]
                    |(((x, residual), factors), y)| {
                        let kept = simd.mul_f32s(T::load(simd, x), f32::load(simd, factors));
                        T::store(simd, y, simd.add_f32s(T::load(simd, residual), kept));
                    },
                ),
            }
        }
        check_length("y", y.len(), x.len());
        residual.iter().for_each(|residual| check_length("residual", residual.len(), x.len()));
        let mut factors = [0.0; PIECE];
        for (index, (x, y)) in x.chunks(PIECE).zip(y.chunks_mut(PIECE)).enumerate() {
            let (first, factors) = (index * PIECE, &mut factors[..x.len()]);
            self.factors(0, first, factors);
            let (factors, residual) = (&*factors, residual.map(|all| &all[first..first + x.len()]));
            dispatch!(
                pass[T: Element](x: &[T], residual: Option<&[T]>, factors: &[f32], y: &mut [T]) -> ()
            );
        }
    }
}

/// A bijection of 32 bits in which every bit of the input changes every bit of the output with a probability near one half (Wellons, "Prospecting for Hash Functions", 2018).
#[inline(always)]
fn scramble(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::arch::tests::on_each;

    #[test]
    fn elements_are_multiplied_by_their_factors() {
        let mask = DropoutMask { probability: 0.3, seed: 5 };
        on_each(|kind| {
            for length in [0, 1, 7, 64, 511, 513, 1500] {
                let x: Vec<f32> = (0..length).map(|index| index as f32 - 3.5).collect();
                let mut factors = vec![0.0; length];
                mask.factors(0, 0, &mut factors);
                let [mut y, mut sum] = [(); 2].map(|()| vec![7.0; length]);
                mask.apply(&x, None, &mut y);
                mask.apply(&x, Some(&x), &mut sum);
                for index in 0..length {
                    let dropped = x[index] * factors[index];
                    assert_eq!((y[index], sum[index]), (dropped, x[index] + dropped), "{kind:?} {index}");
                }
                let narrow: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
                let mut y = vec![bf16::ZERO; length];
                mask.apply(&narrow, Some(&narrow), &mut y);
                for index in 0..length {
                    let x = narrow[index].to_f32();
                    assert_eq!(y[index], bf16::from_f32(x + x * factors[index]), "{kind:?} {index}");
                }
            }
        });
    }
    #[test]
    fn all_are_kept_at_0_and_dropped_at_1() {
        let x: Vec<f32> = (0..1500).map(|index| index as f32 - 3.5).collect();
        on_each(|kind| {
            let [mut y, mut sum] = [(); 2].map(|()| vec![7.0; x.len()]);
            DropoutMask { probability: 0.0, seed: 5 }.apply(&x, None, &mut y);
            assert_eq!(y, x, "{kind:?}");
            let all = DropoutMask { probability: 1.0, seed: 5 };
            all.apply(&x, None, &mut y);
            all.apply(&x, Some(&x), &mut sum);
            assert!(y.iter().all(|y| *y == 0.0), "{kind:?}");
            assert_eq!(sum, x, "{kind:?}");
        });
    }

    #[test]
    #[should_panic(expected = "the probability of dropout is 1.5, but must be between 0 and 1")]
    fn a_probability_above_1_is_refused() {
        DropoutMask { probability: 1.5, seed: 5 }.factors(0, 0, &mut [7.0]);
    }

    #[test]
    #[should_panic(expected = "the probability of dropout is NaN")]
    fn a_probability_that_is_no_number_is_refused() {
        DropoutMask { probability: f32::NAN, seed: 5 }.apply(&[1.0f32], None, &mut [7.0]);
    }
}
