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
