//! The softmax of scores over the keys that each query sees, and its gradient. A plane has a query of a head.

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::launch::{element, plane_count, plane_for_each, plane_index, rows, vector_size};

/// Below all scores, and no infinity, which shaders cannot write.
const LEAST: f32 = -3.0e38;

/// Which keys a query sees, for kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(super) enum Visible {
    All,
    /// None after itself, and so many at most.
    Causal,
    /// Of each query of each sequence, the first and the one after the last: a buffer.
    Ranges,
}

/// What decides which keys the queries of scores `[batch, heads, queries, keys]` see.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    pub visible: Visible,
    /// At the most.
    pub window: usize,
    /// `[batch, queries, 2]` in 32 bits; with other masks any tensor of that type.
    pub ranges: CubeTensor,
    pub heads: usize,
    pub queries: usize,
}

/// The softmax of `scale` times the scores, in their place. They must be nobody else's.
pub(super) fn softmax(scores: CubeTensor, keys: &Keys, scale: f32) -> CubeTensor {
    let (scores, [count, width]) = rows(scores);
    let vector = vector_size(&[&scores], width);
    let (cubes, units) = plane_for_each(&scores, count);
    debug_assert_eq!(keys.ranges.dtype, DType::U32);
    // SAFETY: it reads and writes `count` rows of `width` elements, and the ranges of their queries.
    unsafe {
        softmax_kernel::launch_unchecked(
            &scores.client,
            cubes,
            units,
            scores.required_address_type(),
            vector,
            scores.clone().into_buffer_arg(),
            keys.ranges.clone().into_buffer_arg(),
            count,
            width / vector,
            keys.heads,
            keys.queries,
            keys.window,
            scale,
            keys.visible,
            element(&scores),
        );
    }
    scores
}

/// The gradient of the scores from that of the probabilities, in its place, which must be nobody else's.
pub(super) fn softmax_backward(gradient: CubeTensor, probabilities: CubeTensor, scale: f32) -> CubeTensor {
    let ((gradient, [count, width]), (probabilities, _)) = (rows(gradient), rows(probabilities));
    let vector = vector_size(&[&gradient], width);
    let (cubes, units) = plane_for_each(&gradient, count);
    // SAFETY: it reads and writes `count` rows of `width` elements, which both tensors have.
    unsafe {
        softmax_backward_kernel::launch_unchecked(
            &gradient.client,
            cubes,
            units,
            gradient.required_address_type(),
            vector,
            gradient.clone().into_buffer_arg(),
            probabilities.into_buffer_arg(),
            count,
            width / vector,
            scale,
            element(&gradient),
        );
    }
    gradient
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_kernel<T: Float, N: Size>(
    scores: &mut [Vector<T, N>],
    ranges: &[u32],
    rows: usize,
    width: usize,
    heads: usize,
    queries: usize,
    window: usize,
    scale: f32,
    #[comptime] visible: Visible,
    #[define(T)] _element: ElemType,
) {
    let mut row = plane_index();
    while row < rows {
        let start = row * width;
        let keys = width * N::value();
        let mut from = 0usize;
        let mut to = keys;
        let query = row % queries;
        match comptime!(visible) {
            Visible::All => {}
            Visible::Causal => {
                to = query + keys + 1 - queries;
                from = to - min(window, to);
            }
            Visible::Ranges => {
                let place = (row / (heads * queries)) * queries + query;
                from = ranges[2 * place] as usize;
                to = ranges[2 * place + 1] as usize;
            }
        }
        let first = from / N::value();
        let last = (to + N::value() - 1) / N::value();

        let mut highest = Vector::<f32, N>::new(LEAST);
        let mut column = first + UNIT_POS_PLANE as usize;
        while column < last {
            highest = max(highest, seen::<T, N>(scores[start + column], column, from, to, scale));
            column += PLANE_DIM as usize;
        }
        let mut top = LEAST.runtime();
        #[unroll]
        for lane in 0..N::value() {
            top = max(top, highest.extract(lane));
        }
        let top = plane_max(top);

        let mut sums = Vector::<f32, N>::new(0.0f32);
        let mut column = first + UNIT_POS_PLANE as usize;
        while column < last {
            let score = seen::<T, N>(scores[start + column], column, from, to, scale);
            sums += (score - Vector::new(top)).exp();
            column += PLANE_DIM as usize;
        }
        let factor = 1.0f32 / plane_sum(sums.vector_sum());

        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            let mut probability = Vector::<f32, N>::new(0.0f32);
            if column >= first && column < last && from < to {
                let score = seen::<T, N>(scores[start + column], column, from, to, scale);
                probability = (score - Vector::new(top)).exp() * Vector::new(factor);
            }
            scores[start + column] = Vector::cast_from(probability);
            column += PLANE_DIM as usize;
        }
        row += plane_count();
    }
}

/// Scores of keys that are seen, and [`LEAST`] for others.
#[cube]
fn seen<T: Float, N: Size>(scores: Vector<T, N>, column: usize, from: usize, to: usize, scale: f32) -> Vector<f32, N> {
    let mut value = Vector::<f32, N>::cast_from(scores) * Vector::new(scale);
    let key = column * N::value();
    if key < from || key + N::value() > to {
        #[unroll]
        for lane in 0..N::value() {
            if key + lane < from || key + lane >= to {
                value.insert(lane, LEAST);
            }
        }
    }
    value
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_backward_kernel<T: Float, N: Size>(
    gradient: &mut [Vector<T, N>],
    probabilities: &[Vector<T, N>],
    rows: usize,
    width: usize,
    scale: f32,
    #[define(T)] _element: ElemType,
) {
    let mut row = plane_index();
    while row < rows {
        let start = row * width;
        let mut products = Vector::<f32, N>::new(0.0f32);
        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            products += Vector::<f32, N>::cast_from(gradient[start + column])
                * Vector::cast_from(probabilities[start + column]);
            column += PLANE_DIM as usize;
        }
        let mean = plane_sum(products.vector_sum());
        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            let difference = Vector::<f32, N>::cast_from(gradient[start + column]) - Vector::new(mean);
            let value = difference * Vector::cast_from(probabilities[start + column]) * Vector::new(scale);
            gradient[start + column] = Vector::cast_from(value);
            column += PLANE_DIM as usize;
        }
        row += plane_count();
    }
}
