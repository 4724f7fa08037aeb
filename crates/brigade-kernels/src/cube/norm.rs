//! Norms of rows. A plane has a row.

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::launch::{element, empty, plane_count, plane_for_each, plane_index, rows, vector_size};
use super::linear::columns::{AHEAD, ROWS, column_sums, column_units, sum_of_lanes};
use crate::autodiff::graph::Operation;

/// The layer norm of x with gamma, and beta if there is one, or without a mean the RMS norm of x with gamma.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm {
    pub epsilon: f32,
    /// Whether the mean is taken away first.
    pub is_centred: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Saved {
    x: CubeTensor,
    gamma: CubeTensor,
    /// Of each row.
    means: CubeTensor,
    /// What each row's deviations are multiplied with.
    factors: CubeTensor,
}

impl<const N: usize> Operation<N, CubeTensor> for Norm {
    type Saved = Saved;
    type Extra = ();

    fn forward(&self, inputs: [CubeTensor; N], _: [bool; N]) -> (CubeTensor, Option<Saved>, ()) {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next().map(rows);
        let (Some((x, [count, width])), Some((gamma, _)), beta) = (next(), next(), next()) else {
            unreachable!("it has two inputs or three")
        };
        let y = empty(&x, x.meta.shape().clone(), x.dtype);
        let [means, factors] = [(); 2].map(|()| empty(&x, [count], DType::F32));
        let vector = vector_size(&[&x], width);
        let (cubes, units) = plane_for_each(&x, count);
        let has_beta = beta.is_some();
        // What is not read can be any tensor.
        let beta = beta.map_or_else(|| gamma.clone(), |(beta, _)| beta);
        // SAFETY: it reads and writes `count` rows of `width` elements, which the tensors have.
        unsafe {
            norm_kernel::launch_unchecked(
                &x.client,
                cubes,
                units,
                x.required_address_type(),
                vector,
                x.clone().into_buffer_arg(),
                gamma.clone().into_buffer_arg(),
                beta.into_buffer_arg(),
                y.clone().into_buffer_arg(),
                means.clone().into_buffer_arg(),
                factors.clone().into_buffer_arg(),
                count,
                self.epsilon,
                width / vector,
                self.is_centred,
                has_beta,
                element(&x),
            );
        }
        (y, Some(Saved { x, gamma, means, factors }), ())
    }

    fn backward(self, saved: Saved, gradient: CubeTensor, wanted: [bool; N]) -> [Option<CubeTensor>; N] {
        let Saved { x, gamma, means, factors } = saved;
        let ((gradient, _), (x, [count, width])) = (rows(gradient), rows(x));
        let vector = vector_size(&[&x], width);
        let d_x = wanted[0].then(|| {
            let d_x = empty(&x, x.meta.shape().clone(), x.dtype);
            let (cubes, units) = plane_for_each(&x, count);
            // SAFETY: as of the forward pass.
            unsafe {
                norm_input_kernel::launch_unchecked(
                    &x.client,
                    cubes,
                    units,
                    x.required_address_type(),
                    vector,
                    x.clone().into_buffer_arg(),
                    gamma.clone().into_buffer_arg(),
                    gradient.clone().into_buffer_arg(),
                    means.clone().into_buffer_arg(),
                    factors.clone().into_buffer_arg(),
                    d_x.clone().into_buffer_arg(),
                    count,
                    width / vector,
                    self.is_centred,
                    element(&x),
                );
            }
            d_x
        });
        let parameters = wanted[1..].iter().any(|wanted| *wanted).then(|| {
            let parts = count.div_ceil(ROWS).max(1);
            let [d_gamma, d_beta] = [(); 2].map(|()| empty(&x, [parts, width], DType::F32));
            let (cubes, units) = column_units(width / vector, parts);
            // SAFETY: each cube reads its rows, and writes one row of each result.
            unsafe {
                norm_parameters_kernel::launch_unchecked(
                    &x.client,
                    cubes,
                    units,
                    x.required_address_type(),
                    vector,
                    x.clone().into_buffer_arg(),
                    gradient.clone().into_buffer_arg(),
                    means.into_buffer_arg(),
                    factors.into_buffer_arg(),
                    d_gamma.clone().into_buffer_arg(),
                    d_beta.clone().into_buffer_arg(),
                    count,
                    parts,
                    width / vector,
                    element(&x),
                );
            }
            [d_gamma, d_beta].map(|parts| column_sums(parts, x.dtype))
        });
        let mut found = std::iter::once(d_x).chain(parameters.into_iter().flatten().map(Some));
        std::array::from_fn(|index| found.next().flatten().filter(|_| wanted[index]))
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_kernel<T: Float, N: Size>(
    x: &[Vector<T, N>],
    gamma: &[Vector<T, N>],
    beta: &[Vector<T, N>],
    y: &mut [Vector<T, N>],
    means: &mut [f32],
    factors: &mut [f32],
    rows: usize,
    epsilon: f32,
    #[comptime] width: usize,
    #[comptime] is_centred: bool,
    #[comptime] has_beta: bool,
    #[define(T)] _element: ElemType,
) {
    let elements = f32::cast_from((width * N::value()) as u32);
    let mut row = plane_index();
    while row < rows {
        let start = row * width;
        let mut mean = 0.0f32;
        if comptime!(is_centred) {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            let mut column = UNIT_POS_PLANE as usize;
            while column < width {
                sum += Vector::cast_from(x[start + column]);
                column += PLANE_DIM as usize;
            }
            mean = plane_sum(sum.vector_sum()) / elements;
        }
        let mut squares = Vector::<f32, N>::new(0.0f32);
        let mut deviations = Vector::<f32, N>::new(0.0f32);
        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            let deviation = Vector::<f32, N>::cast_from(x[start + column]) - Vector::new(mean);
            squares += deviation * deviation;
            if comptime!(is_centred) {
                deviations += deviation;
            }
            column += PLANE_DIM as usize;
        }
        let mut variance = plane_sum(squares.vector_sum()) / elements;
        if comptime!(is_centred) {
            // What the mean, which is rounded, was off by.
            let off = plane_sum(deviations.vector_sum()) / elements;
            mean += off;
            variance -= off * off;
            variance = select(variance > 0.0f32, variance, 0.0f32);
        }
        let factor = 1.0f32 / (variance + epsilon).sqrt();
        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            let deviation = Vector::<f32, N>::cast_from(x[start + column]) - Vector::new(mean);
            let mut value = deviation * Vector::new(factor) * Vector::cast_from(gamma[column]);
            if comptime!(has_beta) {
                value += Vector::cast_from(beta[column]);
            }
            y[start + column] = Vector::cast_from(value);
            column += PLANE_DIM as usize;
        }
        if UNIT_POS_PLANE == 0 {
            means[row] = mean;
            factors[row] = factor;
        }
        row += plane_count();
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_input_kernel<T: Float, N: Size>(
    x: &[Vector<T, N>],
    gamma: &[Vector<T, N>],
    gradient: &[Vector<T, N>],
    means: &[f32],
    factors: &[f32],
    d_x: &mut [Vector<T, N>],
    rows: usize,
    #[comptime] width: usize,
    #[comptime] is_centred: bool,
    #[define(T)] _element: ElemType,
) {
    let elements = f32::cast_from((width * N::value()) as u32);
    let mut row = plane_index();
    while row < rows {
        let start = row * width;
        let mean = means[row];
        let factor = factors[row];
        let mut slopes = Vector::<f32, N>::new(0.0f32);
        let mut products = Vector::<f32, N>::new(0.0f32);
        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            let normal =
                (Vector::<f32, N>::cast_from(x[start + column]) - Vector::new(mean)) * Vector::new(factor);
            let slope =
                Vector::<f32, N>::cast_from(gradient[start + column]) * Vector::cast_from(gamma[column]);
            slopes += slope;
            products += slope * normal;
            column += PLANE_DIM as usize;
        }
        let along = plane_sum(products.vector_sum()) / elements;
        let mut shift = 0.0f32;
        if comptime!(is_centred) {
            shift = plane_sum(slopes.vector_sum()) / elements;
        }
        let mut column = UNIT_POS_PLANE as usize;
        while column < width {
            let normal =
                (Vector::<f32, N>::cast_from(x[start + column]) - Vector::new(mean)) * Vector::new(factor);
            let slope =
                Vector::<f32, N>::cast_from(gradient[start + column]) * Vector::cast_from(gamma[column]);
            let value = (slope - Vector::new(shift) - normal * Vector::new(along)) * Vector::new(factor);
            d_x[start + column] = Vector::cast_from(value);
            column += PLANE_DIM as usize;
        }
        row += plane_count();
    }
}

/// For [`ROWS`] rows at a time, the sums of the gradient's columns, and of its products with normed values.
#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_parameters_kernel<T: Float, N: Size>(
    x: &[Vector<T, N>],
    gradient: &[Vector<T, N>],
    means: &[f32],
    factors: &[f32],
    d_gamma: &mut [Vector<f32, N>],
    d_beta: &mut [Vector<f32, N>],
    rows: usize,
    parts: usize,
    #[comptime] width: usize,
    #[define(T)] _element: ElemType,
) {
    let column = ABSOLUTE_POS_X as usize;
    let mut part = CUBE_POS_Y as usize;
    while part < parts {
        let mut of_gamma = Vector::<f32, N>::new(0.0f32);
        let mut of_beta = Vector::<f32, N>::new(0.0f32);
        if column < width {
            let mut row = part * ROWS + UNIT_POS_Y as usize;
            let end = min(part * ROWS + ROWS, rows);
            while row < end {
                // Several rows are read before any of them is needed.
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = row + ahead * CUBE_DIM_Y as usize;
                    let place = min(own, end - 1);
                    let slope = Vector::<f32, N>::cast_from(gradient[place * width + column]);
                    let deviation =
                        Vector::<f32, N>::cast_from(x[place * width + column]) - Vector::new(means[place]);
                    let none = Vector::<f32, N>::new(0.0f32);
                    let product = slope * deviation * Vector::new(factors[place]);
                    of_gamma += select(own < end, product, none);
                    of_beta += select(own < end, slope, none);
                }
                row += AHEAD * CUBE_DIM_Y as usize;
            }
        }
        let of_gamma = sum_of_lanes(of_gamma);
        let of_beta = sum_of_lanes(of_beta);
        if UNIT_POS_Y == 0 && column < width {
            d_gamma[part * width + column] = of_gamma;
            d_beta[part * width + column] = of_beta;
        }
        part += CUBE_COUNT_Y as usize;
    }
}
