//! The softmax of scores over the keys that each query sees, and its gradient. A plane has a query of a head.

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::launch::{element, plane_count, plane_for_each, plane_index, vector_size};

/// Below all scores, and no infinity, which shaders cannot write.
const LEAST: f32 = -3.0e38;

/// Vectors of a row that a unit keeps from one pass to the next, at the most.
const MAX_HELD: usize = 8;

/// Which keys a query sees, for kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Visible {
    All,
    /// None after itself, and at most this many.
    Causal,
    /// Of each query of each sequence, the first and the one after the last: a buffer.
    Ranges,
}

/// What decides which keys the queries of scores `[batch, key_heads, queries of the heads that share keys, keys]` see.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub visible: Visible,
    /// At the most.
    pub window: usize,
    /// `[batch, queries, 2]` in 32 bits; with other masks any tensor of that type.
    pub ranges: CubeTensor,
    pub key_heads: usize,
    pub queries: usize,
}

/// Some rows of each matrix of scores, and how many of their first columns.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub rows: Range<usize>,
    pub width: usize,
}

impl Part {
    /// All of contiguous scores.
    pub fn all(scores: &CubeTensor) -> Self {
        let shape = scores.meta.shape();
        Self { rows: 0..shape[shape.num_dims() - 2], width: shape[shape.num_dims() - 1] }
    }

    /// The number of matrices, and elements from one to the next and from one row to the next.
    fn strides(scores: &CubeTensor) -> [usize; 3] {
        let shape = scores.meta.shape();
        let rank = shape.num_dims();
        let [rows, width] = [shape[rank - 2], shape[rank - 1]];
        [shape.num_elements() / (rows * width).max(1), rows * width, width]
    }
}

/// The softmax of `scale` times a part of contiguous scores, in their place. They must be nobody else's.
pub(crate) fn softmax(scores: &CubeTensor, keys: &Keys, scale: f32, part: Part) {
    let [matrices, matrix, row] = Part::strides(scores);
    let count = matrices * part.rows.len();
    let vector = vector_size(&[scores], part.width).min(vector_size(&[scores], row));
    let (cubes, units) = plane_for_each(scores, count);
    let [held, plane] = held(scores, part.width / vector);
    debug_assert_eq!(keys.ranges.dtype, DType::U32);
    // SAFETY: it reads and writes `width` elements of these rows, and reads the ranges of their queries.
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
            part.rows.len(),
            part.rows.start,
            matrix / vector,
            row / vector,
            part.width / vector,
            row,
            keys.key_heads,
            keys.queries,
            keys.window,
            scale,
            keys.visible,
            held,
            plane,
            element(scores),
        );
    }
}

/// The gradient of a part of scores from that of contiguous probabilities, in its place, which must be nobody else's.
pub(crate) fn softmax_backward(gradient: &CubeTensor, probabilities: &CubeTensor, scale: f32, part: Part) {
    let [matrices, matrix, row] = Part::strides(gradient);
    let count = matrices * part.rows.len();
    let vector = vector_size(&[gradient], part.width).min(vector_size(&[gradient], row));
    let (cubes, units) = plane_for_each(gradient, count);
    let [held, plane] = held(gradient, part.width / vector);
    // SAFETY: it reads and writes `width` elements of these rows, which both tensors have.
    unsafe {
        softmax_backward_kernel::launch_unchecked(
            &gradient.client,
            cubes,
            units,
            gradient.required_address_type(),
            vector,
            gradient.clone().into_buffer_arg(),
            probabilities.clone().into_buffer_arg(),
            count,
            part.rows.len(),
            part.rows.start,
            matrix / vector,
            row / vector,
            part.width / vector,
            scale,
            held,
            plane,
            element(gradient),
        );
    }
}

/// How many vectors of a row of `width` vectors each unit of a plane keeps, and the width of planes: none where planes are not alike, or rows too long.
fn held(scores: &CubeTensor, width: usize) -> [usize; 2] {
    let hardware = &scores.client.properties().hardware;
    let plane = hardware.plane_size_max.max(1) as usize;
    let held = width.div_ceil(plane);
    let fits = hardware.plane_size_min == hardware.plane_size_max && held <= MAX_HELD;
    [if fits { held } else { 0 }, plane]
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_kernel<T: Float, N: Size>(
    scores: &mut [Vector<T, N>],
    ranges: &[u32],
    rows: usize,
    length: usize,
    first_row: usize,
    matrix: usize,
    stride: usize,
    width: usize,
    keys: usize,
    key_heads: usize,
    queries: usize,
    window: usize,
    scale: f32,
    #[comptime] visible: Visible,
    #[comptime] held: usize,
    #[comptime] plane: usize,
    #[define(T)] _element: ElemType,
) {
    let mut row = plane_index();
    while row < rows {
        let own = first_row + row % length;
        let start = (row / length) * matrix + own * stride;
        let mut from = 0usize;
        let mut to = keys;
        let query = own % queries;
        match comptime!(visible) {
            Visible::All => {}
            Visible::Causal => {
                to = query + keys + 1 - queries;
                from = to - min(window, to);
            }
            Visible::Ranges => {
                let place = (row / (length * key_heads)) * queries + query;
                from = ranges[2 * place] as usize;
                to = min(ranges[2 * place + 1] as usize, keys);
                from = min(from, to);
            }
        }
        let first = from / N::value();
        let last = to.div_ceil(N::value());
        let lane = UNIT_POS_PLANE as usize;
        let mut highest = Vector::<f32, N>::new(LEAST);
        let mut sums = Vector::<f32, N>::new(0.0f32);
        if comptime!(held > 0) {
            // The row is read once, and each exponential computed once.
            let mut values = Array::<Vector<f32, N>>::new(held);
            #[unroll]
            for part in 0..held {
                let column = part * plane + lane;
                let mut value = Vector::<f32, N>::new(LEAST);
                if column >= first && column < last {
                    value = seen::<T, N>(scores[start + column], column, from, to, scale);
                }
                values[part] = value;
                highest = max(highest, value);
            }
            let top = highest_of_plane::<N>(highest);
            #[unroll]
            for part in 0..held {
                let value = exponentials::<N>(values[part], top);
                values[part] = value;
                sums += of_seen::<N>(value, 1.0f32);
            }
            let sum = plane_sum(sums.vector_sum());
            // Where no key is seen, all are as high, and none counts.
            let factor = select(from < to, 1.0f32 / sum, 0.0f32);
            #[unroll]
            for part in 0..held {
                let column = part * plane + lane;
                if column < width {
                    scores[start + column] = Vector::cast_from(of_seen::<N>(values[part], factor));
                }
            }
        } else {
            let mut column = first + lane;
            while column < last {
                highest = max(highest, seen::<T, N>(scores[start + column], column, from, to, scale));
                column += PLANE_DIM as usize;
            }
            let top = highest_of_plane::<N>(highest);
            let mut column = first + lane;
            while column < last {
                let score = seen::<T, N>(scores[start + column], column, from, to, scale);
                sums += of_seen::<N>(exponentials::<N>(score, top), 1.0f32);
                column += PLANE_DIM as usize;
            }
            let factor = 1.0f32 / plane_sum(sums.vector_sum());
            let mut column = lane;
            while column < width {
                let mut probability = Vector::<f32, N>::new(0.0f32);
                if column >= first && column < last && from < to {
                    let score = seen::<T, N>(scores[start + column], column, from, to, scale);
                    probability = of_seen::<N>(exponentials::<N>(score, top), factor);
                }
                scores[start + column] = Vector::cast_from(probability);
                column += PLANE_DIM as usize;
            }
        }
        row += plane_count();
    }
}

/// The highest of all elements that the plane's units have.
#[cube]
fn highest_of_plane<N: Size>(highest: Vector<f32, N>) -> f32 {
    let mut top = LEAST.runtime();
    #[unroll]
    for lane in 0..N::value() {
        top = max(top, highest.extract(lane));
    }
    plane_max(top)
}

/// Scores of keys that are seen, and [`LEAST`] for others.
#[cube]
fn seen<T: Float, N: Size>(
    scores: Vector<T, N>,
    column: usize,
    from: usize,
    to: usize,
    scale: f32,
) -> Vector<f32, N> {
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

/// The exponentials of how far scores are above the highest, and -1 for keys that are not seen: where all scores that are seen are infinitely low, [`LEAST`] is the highest.
#[cube]
fn exponentials<N: Size>(scores: Vector<f32, N>, top: f32) -> Vector<f32, N> {
    let shares = (scores - Vector::new(top)).exp();
    select_many(scores.equal(&Vector::new(LEAST)), Vector::new(-1.0f32), shares)
}

/// [`exponentials`] times a factor, and 0 for keys that are not seen.
#[cube]
fn of_seen<N: Size>(shares: Vector<f32, N>, factor: f32) -> Vector<f32, N> {
    let zero = Vector::<f32, N>::new(0.0f32);
    select_many(zero.greater_than(&shares), zero, shares * Vector::new(factor))
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_backward_kernel<T: Float, N: Size>(
    gradient: &mut [Vector<T, N>],
    probabilities: &[Vector<T, N>],
    rows: usize,
    length: usize,
    first_row: usize,
    matrix: usize,
    stride: usize,
    width: usize,
    scale: f32,
    #[comptime] held: usize,
    #[comptime] plane: usize,
    #[define(T)] _element: ElemType,
) {
    let mut row = plane_index();
    while row < rows {
        let start = (row / length) * matrix + (first_row + row % length) * stride;
        let lane = UNIT_POS_PLANE as usize;
        let mut products = Vector::<f32, N>::new(0.0f32);
        if comptime!(held > 0) {
            // The row is read once.
            let mut slopes = Array::<Vector<T, N>>::new(held);
            let mut shares = Array::<Vector<T, N>>::new(held);
            #[unroll]
            for part in 0..held {
                let column = part * plane + lane;
                if column < width {
                    slopes[part] = gradient[start + column];
                    shares[part] = probabilities[start + column];
                    products += Vector::<f32, N>::cast_from(slopes[part]) * Vector::cast_from(shares[part]);
                }
            }
            let mean = plane_sum(products.vector_sum());
            #[unroll]
            for part in 0..held {
                let column = part * plane + lane;
                if column < width {
                    gradient[start + column] = slope_of::<T, N>(slopes[part], shares[part], mean, scale);
                }
            }
        } else {
            let mut column = lane;
            while column < width {
                products += Vector::<f32, N>::cast_from(gradient[start + column])
                    * Vector::cast_from(probabilities[start + column]);
                column += PLANE_DIM as usize;
            }
            let mean = plane_sum(products.vector_sum());
            let mut column = lane;
            while column < width {
                let place = start + column;
                gradient[place] = slope_of::<T, N>(gradient[place], probabilities[place], mean, scale);
                column += PLANE_DIM as usize;
            }
        }
        row += plane_count();
    }
}

/// The gradient of scores.
#[cube]
fn slope_of<T: Float, N: Size>(
    slope: Vector<T, N>,
    share: Vector<T, N>,
    mean: f32,
    scale: f32,
) -> Vector<T, N> {
    let difference = Vector::<f32, N>::cast_from(slope) - Vector::new(mean);
    Vector::cast_from(difference * Vector::cast_from(share) * Vector::new(scale))
}
