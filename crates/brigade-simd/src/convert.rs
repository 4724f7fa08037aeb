//! Numbers of one type to another.

use std::marker::PhantomData;

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::check_length;
use crate::slices::for_each_vector;

/// `to ← from`, rounded to the nearest even.
///
/// # Panics
/// If `to` is not as long as `from`.
pub fn convert<A: Element, B: Element>(from: &[A], to: &mut [B]) {
    #[inline(always)]
    fn pass<S: Simd, A: Element, B: Element>(simd: S, from: &[A], to: &mut [B]) {
        for_each_vector(
            simd,
            (from, to),
            #[inline(always)]
            |(from, to)| B::store(simd, to, A::load(simd, from)),
        );
    }
    check_length("to", to.len(), from.len());
    dispatch!(pass[A: Element, B: Element](from: &[A], to: &mut [B]) -> ());
}

/// The values, rounded to `T`, in the memory that they were in.
pub fn convert_in_place<T: Element>(values: &mut [f32]) -> &mut [T] {
    #[inline(always)]
    fn pass<S: Simd, T: Element>(simd: S, values: &mut [f32], _: PhantomData<T>) {
        // Nothing is written where a value is still to be read: none of `T` is wider.
        for from in (0..values.len()).step_by(S::F32_LANES) {
            let part = from..(from + S::F32_LANES).min(values.len());
            let wide = f32::load(simd, &values[part.clone()]);
            T::store(simd, &mut bytemuck::cast_slice_mut(values)[part], wide);
        }
    }
    if size_of::<T>() != size_of::<f32>() {
        let number = PhantomData::<T>;
        let values = &mut *values;
        dispatch!(pass[T: Element](values: &mut [f32], number: PhantomData<T>) -> ());
    }
    let count = values.len();
    &mut bytemuck::cast_slice_mut(values)[..count]
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::arch::tests::on_each;
    use crate::testing::numbers;

    #[test]
    fn rounds_each_number() {
        for length in [0, 1, 15, 16, 17, 100] {
            let wide: Vec<f32> = numbers(length, 4, 3.0);
            let expected: Vec<bf16> = wide.iter().map(|x| bf16::from_f32(*x)).collect();
            on_each(|kind| {
                let mut narrow = vec![bf16::ONE; length];
                convert(&wide, &mut narrow);
                assert_eq!(narrow, expected, "{kind:?}");
                let mut again = vec![1.0; length];
                convert(&narrow, &mut again);
                assert!(again.iter().zip(&expected).all(|(a, b)| *a == b.to_f32()), "{kind:?}");
                assert_eq!(convert_in_place::<bf16>(&mut wide.clone()), expected, "{kind:?}");
                assert_eq!(convert_in_place::<f32>(&mut wide.clone()), wide, "{kind:?}");
            });
        }
    }

    #[test]
    #[should_panic(expected = "`to` must have 2 elements, but has 1")]
    fn lengths_must_fit() {
        convert(&[1f32; 2], &mut [bf16::ONE; 1]);
    }
}
