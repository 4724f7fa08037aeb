//! Rotary positions (Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021), with the halves of a head's vector as the
//! coordinates of its planes, as GPT-NeoX and Llama have them.

use pulp::Simd;

use crate::arch::dispatch;
use crate::element::Element;
use crate::rows::{check_length, check_rows};
use crate::slices::for_each_vector;

/// The angles by which vectors at some positions are rotated: of each position, one for each plane.
#[derive(Debug, Clone, Copy)]
pub struct Angles<'a> {
    /// `[positions, planes]`.
    pub cosines: &'a [f32],
    /// `[positions, planes]`.
    pub sines: &'a [f32],
    /// In each position.
    pub planes: usize,
}

/// Which way vectors are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// By the angles.
    Forward,
    /// Back by the angles, as gradients are.
    Backward,
}

/// `y ← x`, in which the first `2 · planes` elements of each head's vector are rotated: elements `i` and `planes + i` by the position's angle `i`.
/// `x`, `y`: rows of `heads` vectors of `depth` elements. The row `r` is at position `r` modulo the number of positions.
///
/// # Panics
/// If the shapes do not fit.
pub fn rotary<T: Element>(
    x: &[T],
    [heads, depth]: [usize; 2],
    angles: Angles<'_>,
    rotation: Rotation,
    y: &mut [T],
) {
    let Angles { cosines, sines, planes } = angles;
    check_rows("x", x.len(), heads * depth);
    check_length("y", y.len(), x.len());
    check_rows("cosines", cosines.len(), planes);
    check_length("sines", sines.len(), cosines.len());
    assert!(2 * planes <= depth, "{planes} planes in vectors of {depth} elements");
    if x.is_empty() {
        return;
    }
    if planes == 0 {
        y.copy_from_slice(x);
        return;
    }
    assert!(!cosines.is_empty(), "`cosines` has no position");
    let sign = if rotation == Rotation::Forward { 1.0 } else { -1.0 };
    dispatch!(pass[T: Element](
        x: &[T], heads: usize, depth: usize, angles: Angles<'_>, sign: f32, y: &mut [T]
    ) -> ());
}

#[inline(always)]
fn pass<S: Simd, T: Element>(
    simd: S,
    x: &[T],
    heads: usize,
    depth: usize,
    angles: Angles<'_>,
    sign: f32,
    y: &mut [T],
) {
    let Angles { cosines, sines, planes } = angles;
    let sign = simd.splat_f32s(sign);
    let positions = cosines.chunks_exact(planes).zip(sines.chunks_exact(planes)).cycle();
    let rows = x.chunks_exact(heads * depth).zip(y.chunks_exact_mut(heads * depth));
    for ((x, y), (cosines, sines)) in rows.zip(positions) {
        for (x, y) in x.chunks_exact(depth).zip(y.chunks_exact_mut(depth)) {
            let (x, x_rest) = x.split_at(2 * planes);
            let (y, y_rest) = y.split_at_mut(2 * planes);
            y_rest.copy_from_slice(x_rest);
            let (a, b) = x.split_at(planes);
            let (to_a, to_b) = y.split_at_mut(planes);
            for_each_vector(
                simd,
                (((a, b), (cosines, sines)), (to_a, to_b)),
                #[inline(always)]
                |(((a, b), (cosine, sine)), (to_a, to_b))| {
                    let (a, b) = (T::load(simd, a), T::load(simd, b));
                    let cosine = f32::load(simd, cosine);
                    let sine = simd.mul_f32s(f32::load(simd, sine), sign);
                    let minus_sine = simd.neg_f32s(sine);
                    T::store(simd, to_a, simd.mul_add_f32s(b, minus_sine, simd.mul_f32s(a, cosine)));
                    T::store(simd, to_b, simd.mul_add_f32s(a, sine, simd.mul_f32s(b, cosine)));
                },
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;
    use crate::arch::tests::on_each;
    use crate::testing::{distance, numbers};

    fn check<T: Element>(rows: usize, heads: usize, positions: usize, planes: usize, rest: usize) {
        let depth = 2 * planes + rest;
        let x = numbers::<T>(rows * heads * depth, 1, 2.0);
        let turns: Vec<f32> = numbers(positions * planes, 2, 3.0);
        let cosines: Vec<f32> = turns.iter().map(|angle| angle.cos()).collect();
        let sines: Vec<f32> = turns.iter().map(|angle| angle.sin()).collect();
        let angles = Angles { cosines: &cosines, sines: &sines, planes };
        let limit = if size_of::<T>() == 4 { 1.5 } else { 0.51 };
        on_each(|kind| {
            for (rotation, sign) in [(Rotation::Forward, 1.0), (Rotation::Backward, -1.0)] {
                let mut y = vec![T::ZERO; x.len()];
                rotary(&x, [heads, depth], angles, rotation, &mut y);
                for (index, got) in y.iter().enumerate() {
                    let (row, place) = (index / (heads * depth), index % depth);
                    if place >= 2 * planes {
                        assert_eq!(got.to_f32(), x[index].to_f32());
                        continue;
                    }
                    let angle = row % positions * planes + place % planes;
                    let (cosine, sine) = (f64::from(cosines[angle]), sign * f64::from(sines[angle]));
                    let first = index - place + place % planes;
                    let (a, b) = (f64::from(x[first].to_f32()), f64::from(x[first + planes].to_f32()));
                    let terms = if place < planes { [a * cosine, -b * sine] } else { [b * cosine, a * sine] };
                    let magnitude = terms[0].abs() + terms[1].abs();
                    let far = distance(*got, terms[0] + terms[1], magnitude);
                    assert!(far <= limit, "{kind:?}: {got:?} at {index} is {far} units off");
                }
            }
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_shape_is_near_the_truth(
            rows in 0usize..9, heads in 1usize..4, positions in 1usize..5, planes in 0usize..40, rest in 0usize..3
        ) {
            check::<f32>(rows, heads, positions, planes, rest);
            check::<bf16>(rows, heads, positions, planes, rest);
        }
    }

    #[test]
    #[should_panic(expected = "3 planes in vectors of 4 elements")]
    fn planes_must_fit() {
        let angles = Angles { cosines: &[0.0; 3], sines: &[0.0; 3], planes: 3 };
        rotary(&[0f32; 4], [1, 4], angles, Rotation::Forward, &mut [0.0; 4]);
    }
}
