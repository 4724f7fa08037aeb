//! Activations, with the bias before them.

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::launch::{element, empty, rows, unit_count, unit_for_each, vector_size};
use super::linear::columns::{AHEAD, ROWS, column_sums, column_units, sum_of_lanes};
use crate::activation::{Activate, ActivationFunction};
use crate::autodiff::graph::Operation;

impl Operation<1, CubeTensor> for Activate {
    type Saved = CubeTensor;
    type Extra = ();

    fn forward(&self, [x]: [CubeTensor; 1], _: [bool; 1]) -> (CubeTensor, Option<CubeTensor>, ()) {
        let (x, _) = rows(x);
        // Without a bias it stays as it is.
        (activated(&x, None, self.0), Some(x), ())
    }

    fn backward(self, x: CubeTensor, gradient: CubeTensor, _: [bool; 1]) -> [Option<CubeTensor>; 1] {
        [Some(slope(x, gradient, self.0))]
    }
}

/// Adds a bias, if there is one, to the rows of a product in its place, and gives the activation of the sum. With a bias, `hidden` must be nobody else's.
pub(super) fn activated(
    hidden: &CubeTensor,
    bias: Option<&CubeTensor>,
    activation: ActivationFunction,
) -> CubeTensor {
    let (hidden, [count, width]) = rows(hidden.clone());
    let output = empty(&hidden, hidden.meta.shape().clone(), hidden.dtype);
    let vector = vector_size(&[&hidden], width);
    let (cubes, units) = unit_for_each(count * width / vector);
    // What is not read can be any tensor but those that are written.
    let spare = || empty(&hidden, [width], hidden.dtype);
    // SAFETY: it reads and writes `count` rows of `width` elements, which the tensors have.
    unsafe {
        activation_kernel::launch_unchecked(
            &hidden.client,
            cubes,
            units,
            hidden.required_address_type(),
            vector,
            hidden.clone().into_buffer_arg(),
            bias.cloned().unwrap_or_else(spare).into_buffer_arg(),
            output.clone().into_buffer_arg(),
            count * width / vector,
            width / vector,
            bias.is_some(),
            activation,
            element(&hidden),
        );
    }
    output
}

/// The gradient of an activation's input, from that of its output.
pub(super) fn slope(hidden: CubeTensor, gradient: CubeTensor, activation: ActivationFunction) -> CubeTensor {
    let ((hidden, [count, width]), (gradient, _)) = (rows(hidden), rows(gradient));
    let slope = empty(&hidden, hidden.meta.shape().clone(), hidden.dtype);
    let vector = vector_size(&[&hidden], count * width);
    let elements = count * width / vector;
    let (cubes, units) = unit_for_each(elements);
    // SAFETY: it reads and writes as many elements as all three tensors have.
    unsafe {
        slope_kernel::launch_unchecked(
            &hidden.client,
            cubes,
            units,
            hidden.required_address_type(),
            vector,
            hidden.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            slope.clone().into_buffer_arg(),
            elements,
            activation,
            element(&hidden),
        );
    }
    slope
}

/// The gradient of an activation's input, from that of its output, and the sums of its columns.
pub(super) fn slope_and_sums(
    hidden: CubeTensor,
    gradient: CubeTensor,
    activation: ActivationFunction,
) -> [CubeTensor; 2] {
    let ((hidden, [count, width]), (gradient, _)) = (rows(hidden), rows(gradient));
    let slope = empty(&hidden, hidden.meta.shape().clone(), hidden.dtype);
    let parts = count.div_ceil(ROWS).max(1);
    let sums = empty(&hidden, [parts, width], DType::F32);
    let vector = vector_size(&[&hidden], width);
    let (cubes, units) = column_units(width / vector, parts);
    // SAFETY: each cube reads and writes its rows of `width` elements, which the tensors have, and writes one row of sums.
    unsafe {
        slope_and_sums_kernel::launch_unchecked(
            &hidden.client,
            cubes,
            units,
            hidden.required_address_type(),
            vector,
            hidden.clone().into_buffer_arg(),
            gradient.into_buffer_arg(),
            slope.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            count,
            parts,
            width / vector,
            activation,
            element(&hidden),
        );
    }
    [slope, column_sums(sums, hidden.dtype)]
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn activation_kernel<T: Float, N: Size>(
    hidden: &mut [Vector<T, N>],
    bias: &[Vector<T, N>],
    output: &mut [Vector<T, N>],
    elements: usize,
    #[comptime] width: usize,
    #[comptime] has_bias: bool,
    #[comptime] activation: ActivationFunction,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let mut value = Vector::<f32, N>::cast_from(hidden[index]);
        if comptime!(has_bias) {
            // The activation is of what the backward pass will read.
            let sum = Vector::<T, N>::cast_from(value + Vector::cast_from(bias[index % width]));
            hidden[index] = sum;
            value = Vector::cast_from(sum);
        }
        output[index] = Vector::cast_from(activate::<N>(value, activation));
        index += unit_count();
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn slope_kernel<T: Float, N: Size>(
    hidden: &[Vector<T, N>],
    gradient: &[Vector<T, N>],
    slope: &mut [Vector<T, N>],
    elements: usize,
    #[comptime] activation: ActivationFunction,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        let factor = derivative::<N>(Vector::cast_from(hidden[index]), activation);
        slope[index] = Vector::cast_from(factor * Vector::cast_from(gradient[index]));
        index += unit_count();
    }
}

/// The sums are those of [`ROWS`] rows at a time, as they are written.
#[cube(launch_unchecked, address_type = "dynamic")]
fn slope_and_sums_kernel<T: Float, N: Size>(
    hidden: &[Vector<T, N>],
    gradient: &[Vector<T, N>],
    slope: &mut [Vector<T, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    parts: usize,
    #[comptime] width: usize,
    #[comptime] activation: ActivationFunction,
    #[define(T)] _element: ElemType,
) {
    let column = ABSOLUTE_POS_X as usize;
    let mut part = CUBE_POS_Y as usize;
    while part < parts {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        if column < width {
            let mut row = part * ROWS + UNIT_POS_Y as usize;
            let end = min(part * ROWS + ROWS, rows);
            while row < end {
                let mut read = Array::<Vector<T, N>>::new(comptime!(2 * AHEAD));
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = row + ahead * CUBE_DIM_Y as usize;
                    let place = min(own, end - 1) * width + column;
                    read[ahead] = hidden[place];
                    read[comptime!(AHEAD + ahead)] = gradient[place];
                }
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = row + ahead * CUBE_DIM_Y as usize;
                    let place = min(own, end - 1) * width + column;
                    let factor = derivative::<N>(Vector::cast_from(read[ahead]), activation);
                    let upstream = Vector::<f32, N>::cast_from(read[comptime!(AHEAD + ahead)]);
                    let value = Vector::<T, N>::cast_from(factor * upstream);
                    if own < end {
                        slope[place] = value;
                        sum += Vector::cast_from(value);
                    }
                }
                row += AHEAD * CUBE_DIM_Y as usize;
            }
        }
        let sum = sum_of_lanes(sum);
        if UNIT_POS_Y == 0 && column < width {
            sums[part * width + column] = sum;
        }
        part += CUBE_COUNT_Y as usize;
    }
}

/// √(2/π) of GELU's approximation.
const ROOT: f32 = 0.797_884_6;
/// The factor of the cube in it.
const CUBIC: f32 = 0.044_715;
/// 1/√(2π), the density of the normal distribution at 0.
const DENSITY: f32 = 0.398_942_3;

#[cube]
pub(super) fn activate<N: Size>(
    x: Vector<f32, N>,
    #[comptime] activation: ActivationFunction,
) -> Vector<f32, N> {
    match comptime!(activation) {
        ActivationFunction::Gelu => x * normal_share::<N>(x),
        ActivationFunction::GeluTanh => x * logistic::<N>(inner::<N>(x)),
        ActivationFunction::Silu => x * logistic::<N>(x),
        // Not the maximum, which leaves out what is no number.
        ActivationFunction::Relu => {
            let zero = Vector::<f32, N>::new(0.0f32);
            select_many(zero.greater_than(&x), zero, x)
        }
    }
}

#[cube]
pub(super) fn derivative<N: Size>(
    x: Vector<f32, N>,
    #[comptime] activation: ActivationFunction,
) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    match comptime!(activation) {
        ActivationFunction::Gelu => {
            let density = (x * x * Vector::new(-0.5f32)).exp() * Vector::new(DENSITY);
            normal_share::<N>(x) + x * density
        }
        ActivationFunction::GeluTanh => {
            let share = logistic::<N>(inner::<N>(x));
            let change = (one + x * x * Vector::new(3.0f32 * CUBIC)) * Vector::new(2.0f32 * ROOT);
            share + x * share * (one - share) * change
        }
        ActivationFunction::Silu => {
            let share = logistic::<N>(x);
            share + x * share * (one - share)
        }
        ActivationFunction::Relu => {
            let zero = Vector::<f32, N>::new(0.0f32);
            select_many(zero.greater_equal(&x), zero, one)
        }
    }
}

/// The share of a normal distribution that is below x, with the polynomial of `brigade_simd`'s GELU: of t = |x|, `Φ(−t) e^(t²/2)` is one in (t − 4) / (t + 4), divided by t + 4. Its relative
/// error is that of the device's exponential and of t², also where the share is small.
#[cube]
fn normal_share<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let inverse = one / (x.abs() + Vector::new(4.0f32));
    let y = one - inverse * Vector::new(8.0f32);
    let mut sum = y * Vector::new(-1.341_966_4e-4f32) + Vector::new(1.746_567e-4f32);
    sum = sum * y + Vector::new(1.568_405_7e-3f32);
    sum = sum * y + Vector::new(-3.510_209_7e-3f32);
    sum = sum * y + Vector::new(-7.524_005e-3f32);
    sum = sum * y + Vector::new(6.040_349e-2f32);
    sum = sum * y + Vector::new(-1.865_236_6e-1f32);
    sum = sum * y + Vector::new(3.871_369e-1f32);
    sum = sum * y + Vector::new(-6.078_965_7e-1f32);
    sum = sum * y + Vector::new(7.552_851_4e-1f32);
    let tail = sum * inverse * (x * x * Vector::new(-0.5f32)).exp();
    select_many(x.greater_than(&Vector::new(0.0f32)), one - tail, tail)
}

/// Twice what goes into the hyperbolic tangent of GELU's approximation: `(1 + tanh(u)) / 2` is the logistic function of `2u`.
#[cube]
fn inner<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    x * (x * x * Vector::new(CUBIC) + Vector::new(1.0f32)) * Vector::new(2.0f32 * ROOT)
}

#[cube]
fn logistic<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    one / (one + (-x).exp())
}
