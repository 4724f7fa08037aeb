//! Scaled dot-product attention, tile by tile: no more than a tile of scores is ever in memory (Dao et al., "FlashAttention", 2022;
//! the running softmax is that of Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
//!
//! What a query sees is a range of keys, so causal masks, sliding windows, padding and documents packed into one row are one case, and tiles that no query sees
//! cost nothing. Sums go over tiles of keys from the first to the last, so their order depends on the shapes alone.

mod backward;
mod forward;
mod rows;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::ops::Range;

pub use backward::attention_backward;
pub use forward::attention;

use crate::{DropoutMask, Element, Matrix};

/// Queries in a tile, and keys.
const TILE: usize = 64;

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; a multiple of them is `heads` (Ainslie et al., "GQA", 2023).
    pub key_heads: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys of a sequence.
    pub keys: usize,
    /// Elements of a query and a key of one head.
    pub depth: usize,
    /// Elements of a value of one head.
    pub value_depth: usize,
}

/// Where the vectors of all heads are: those of position `t` of head `h` of sequence `b` begin at
/// `b · batch + t · position + h · head`, each in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadStrides {
    /// Elements from one sequence to the next.
    pub batch: usize,
    /// Elements from one position to the next.
    pub position: usize,
    /// Elements from one head to the next.
    pub head: usize,
}

/// Vectors of all heads, to be read.
#[derive(Debug, Clone, Copy)]
pub struct HeadVectors<'a, T> {
    /// The slice that they are in.
    pub values: &'a [T],
    /// Where.
    pub strides: HeadStrides,
}

/// Vectors of all heads, to be written.
#[derive(Debug)]
pub struct HeadVectorsMut<'a, T> {
    /// Of the first vector. The elements from here on are borrowed mutably, but those between vectors may be of other vectors.
    start: *mut T,
    /// Elements from there to the end of the slice.
    length: usize,
    strides: HeadStrides,
    slice: PhantomData<&'a mut [T]>,
}

/// How probabilities follow from the products of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probabilities<'a> {
    /// Which keys a query sees.
    pub visible: Visible<'a>,
    /// What multiplies the products.
    pub scale: f32,
    /// Which probabilities are dropped; none if all are kept.
    pub dropout: Option<DropoutMask>,
}

/// Which keys a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visible<'a> {
    /// All.
    All,
    /// None after itself, with the last query at the position of the last key, and at most `window`, including itself.
    Causal {
        /// The most keys; none if there is no limit.
        window: Option<usize>,
    },
    /// Of each query of each sequence in turn, the first key that it sees and the one after the last.
    Ranges(&'a [[u32; 2]]),
}

impl Visible<'_> {
    /// Of a query of a sequence.
    fn keys(&self, shape: &AttentionShape, batch: usize, query: usize) -> Range<usize> {
        match *self {
            Self::All => 0..shape.keys,
            Self::Causal { window } => {
                let end = (query + 1 + shape.keys).saturating_sub(shape.queries).min(shape.keys);
                window.map_or(0, |window| end.saturating_sub(window))..end
            }
            Self::Ranges(ranges) => {
                let [start, end] = ranges[batch * shape.queries + query].map(|key| key as usize);
                start..end.min(shape.keys)
            }
        }
    }

    /// Of each query of a tile, and of all of them together.
    fn of_tile(&self, shape: &AttentionShape, batch: usize, queries: Range<usize>) -> TileKeys {
        let each: Vec<_> = queries.map(|query| self.keys(shape, batch, query)).collect();
        let seen = || each.iter().filter(|keys| !keys.is_empty());
        let start = seen().map(|keys| keys.start).min().unwrap_or(0);
        let end = seen().map(|keys| keys.end).max().unwrap_or(0);
        TileKeys { each, all: start..end }
    }

    fn check(&self, shape: &AttentionShape) {
        if let Self::Ranges(ranges) = self {
            let queries = shape.batch * shape.queries;
            assert!(ranges.len() == queries, "{} ranges of keys for {queries} queries", ranges.len());
        }
    }
}

/// The keys that the queries of a tile see.
struct TileKeys {
    each: Vec<Range<usize>>,
    all: Range<usize>,
}

impl TileKeys {
    /// The tiles of keys with any of them.
    fn tiles(&self) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = self.all;
        let first = start / TILE * TILE;
        (first..end).step_by(TILE).map(move |from| from..(from + TILE).min(end))
    }

    /// What of a tile of keys a query sees, from the tile's first key on.
    fn within(&self, query: usize, tile: &Range<usize>) -> Range<usize> {
        let keys = &self.each[query];
        let start = keys.start.clamp(tile.start, tile.end) - tile.start;
        let end = keys.end.clamp(tile.start, tile.end) - tile.start;
        start..end.max(start)
    }
}

impl AttentionShape {
    /// Elements of the softmax's logarithms: one for each query of each head.
    pub fn rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// The head of keys that a head of queries looks at.
    fn key_head(&self, head: usize) -> usize {
        head / (self.heads / self.key_heads)
    }

    /// The heads of queries that look at a head of keys.
    fn heads_of(&self, key_head: usize) -> Range<usize> {
        let group = self.heads / self.key_heads;
        key_head * group..(key_head + 1) * group
    }

    fn check(&self) {
        assert!(
            self.key_heads > 0 && self.heads.is_multiple_of(self.key_heads),
            "{} heads of queries are no multiple of {} heads of keys",
            self.heads,
            self.key_heads
        );
    }
}

impl HeadStrides {
    /// Where a vector begins; the highest number if it would be beyond that.
    fn start(&self, [batch, head]: [usize; 2], position: usize) -> usize {
        let terms = [(batch, self.batch), (head, self.head), (position, self.position)];
        terms
            .into_iter()
            .fold(0usize, |sum, (index, stride)| sum.saturating_add(index.saturating_mul(stride)))
    }
}

impl<'a, T> HeadVectors<'a, T> {
    /// Of one head, those of some positions, as a matrix.
    fn tile(&self, place: [usize; 2], positions: &Range<usize>, depth: usize) -> Matrix<'a, T> {
        let start = self.strides.start(place, positions.start);
        Matrix::new(&self.values[start..], [positions.len(), depth], [self.strides.position, 1])
    }

    /// One of them.
    fn vector(&self, place: [usize; 2], position: usize, depth: usize) -> &'a [T] {
        &self.values[self.strides.start(place, position)..][..depth]
    }
}

impl<'a, T> HeadVectorsMut<'a, T> {
    /// In a slice of their own.
    pub fn new(values: &'a mut [T], strides: HeadStrides) -> Self {
        Self { start: values.as_mut_ptr(), length: values.len(), strides, slice: PhantomData }
    }

    /// Queries, keys and values in one slice, with those of one position next to each other: `widths` are their elements, of all heads.
    ///
    /// # Panics
    /// If a position's elements are not those of all three.
    pub fn side_by_side(values: &'a mut [T], widths: [usize; 3], strides: HeadStrides) -> [Self; 3] {
        let total = widths.iter().fold(0usize, |total, width| total.saturating_add(*width));
        assert!(
            total <= strides.position,
            "queries, keys and values of {widths:?} elements do not fit side by side where the next position begins after {}",
            strides.position
        );
        let (start, length) = (values.as_mut_ptr(), values.len());
        let mut from = 0;
        widths.map(|width| {
            let offset = from.min(length);
            from += width;
            // SAFETY: within the slice, or at its end.
            Self { start: unsafe { start.add(offset) }, length: length - offset, strides, slice: PhantomData }
        })
    }

    /// One of them. No other slice of this memory may be in use.
    fn vector(&mut self, [batch, head]: [usize; 2], position: usize, depth: usize) -> &mut [T] {
        let offset = self.strides.start([batch, head], position);
        assert!(
            offset <= self.length && depth <= self.length - offset,
            "the {depth} elements of position {position}, head {head} and sequence {batch} are beyond the end of {} elements with {:?}",
            self.length,
            self.strides
        );
        // SAFETY: within the slice that is borrowed for 'a. Of slices that reach into one another only one is in use at a time: the kernels hold no two.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), depth) }
    }
}

/// What [`rows`] left of a tile of scores: in the memory of each row, its numbers as `T`.
fn rounded<T: Element>(scores: &[f32], [rows, columns]: [usize; 2]) -> Matrix<'_, T> {
    let stride = columns * (size_of::<f32>() / size_of::<T>());
    Matrix::new(bytemuck::cast_slice(scores), [rows, columns], [stride, 1])
}

/// Zeros where what is [`rounded`] is dropped.
fn drop_tile<T: Element>(scores: &mut [f32], factors: &[f32], columns: usize) {
    for (row, factors) in scores.chunks_exact_mut(columns).zip(factors.chunks_exact(columns)) {
        let row: &mut [T] = bytemuck::cast_slice_mut(row);
        for (value, factor) in row.iter_mut().zip(factors) {
            *value = if *factor == 0.0 { T::ZERO } else { *value };
        }
    }
}

/// Consecutive tiles of this many positions.
fn tiles(positions: usize) -> impl Iterator<Item = Range<usize>> {
    (0..positions).step_by(TILE).map(move |from| from..(from + TILE).min(positions))
}
