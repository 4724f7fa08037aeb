//! Walking over slices of one length, a register at a time.

use std::iter::Zip;
use std::slice::{ChunksExact, ChunksExactMut};

use pulp::Simd;

/// Slices of one length, or a pair of such, that are cut at the same places.
pub(crate) trait Slices: Sized {
    type Vectors: Iterator<Item = Self>;

    /// Pieces of `lanes` elements, and what is left after the last.
    fn vectors(self, lanes: usize) -> (Self::Vectors, Self);

    fn is_empty(&self) -> bool;
}

impl<'a, T> Slices for &'a [T] {
    type Vectors = ChunksExact<'a, T>;

    #[inline(always)]
    fn vectors(self, lanes: usize) -> (Self::Vectors, Self) {
        let (whole, rest) = self.split_at(self.len() - self.len() % lanes);
        (whole.chunks_exact(lanes), rest)
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        <[T]>::is_empty(self)
    }
}

impl<'a, T> Slices for &'a mut [T] {
    type Vectors = ChunksExactMut<'a, T>;

    #[inline(always)]
    fn vectors(self, lanes: usize) -> (Self::Vectors, Self) {
        let (whole, rest) = self.split_at_mut(self.len() - self.len() % lanes);
        (whole.chunks_exact_mut(lanes), rest)
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        <[T]>::is_empty(self)
    }
}

impl<A: Slices, B: Slices> Slices for (A, B) {
    type Vectors = Zip<A::Vectors, B::Vectors>;

    #[inline(always)]
    fn vectors(self, lanes: usize) -> (Self::Vectors, Self) {
        let (first, first_rest) = self.0.vectors(lanes);
        let (second, second_rest) = self.1.vectors(lanes);
        (first.zip(second), (first_rest, second_rest))
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Calls `each` on a register's worth of elements after the other, then on what is left, if anything is.
#[inline(always)]
pub(crate) fn for_each_vector<S: Simd, A: Slices>(_simd: S, slices: A, mut each: impl FnMut(A)) {
    let (vectors, rest) = slices.vectors(S::F32_LANES);
    for piece in vectors {
        each(piece);
    }
    if !rest.is_empty() {
        each(rest);
    }
}

/// How many sums a reduction has, so that it does not wait for each addition.
pub(crate) const CHAINS: usize = 4;

/// As [`for_each_vector`], with the number of the chain of sums that the piece belongs to: in turn, then the first.
#[inline(always)]
pub(crate) fn for_each_in_chains<S: Simd, A: Slices>(simd: S, slices: A, mut each: impl FnMut(usize, A)) {
    let (blocks, rest) = slices.vectors(CHAINS * S::F32_LANES);
    for block in blocks {
        let (vectors, _) = block.vectors(S::F32_LANES);
        for (chain, piece) in vectors.enumerate() {
            each(chain, piece);
        }
    }
    for_each_vector(
        simd,
        rest,
        #[inline(always)]
        |piece| each(0, piece),
    );
}

/// Sums of a reduction, all zero.
#[inline(always)]
pub(crate) fn no_sums<S: Simd>(simd: S) -> [S::f32s; CHAINS] {
    [simd.splat_f32s(0.0); CHAINS]
}

/// The sum of a reduction's sums.
#[inline(always)]
pub(crate) fn total<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; CHAINS]) -> f32 {
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

/// The first `count` lanes of `values`, and `other` in the others.
#[inline(always)]
pub(crate) fn first_lanes<S: Simd>(simd: S, count: usize, values: S::f32s, other: f32) -> S::f32s {
    if count >= S::F32_LANES {
        return values;
    }
    let mask = simd.mask_between_m32s(0, count as u32).mask();
    simd.select_f32s(mask, values, simd.splat_f32s(other))
}
