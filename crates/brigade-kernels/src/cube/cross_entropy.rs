//! The cross entropy of rows of logits, and its gradient in their place. A cube has a row.

use burn::backend::Cube;
use burn::tensor::{DType, FloatDType, Int as Whole, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::launch::{UNITS, cubes, element, empty, rows, transposed, unit_count, unit_for_each, vector_size};
use super::linear::columns::column_sums;
use super::linear::products::{add_product, has_library, product};
use crate::autodiff::graph::Operation;
use crate::cross_entropy::CrossEntropyConfig;

/// Logits that are in memory at a time, in elements: some rows of them.
const CHUNK: usize = 1 << 26;

/// Classes from which on a cube has as many units as there can be.
const LONG: usize = 8192;

/// Units of a cube at the most.
const MAX_UNITS: u32 = 1024;

/// Rows of a chunk are a multiple of this, as the tiles of products are.
const TILE: usize = 128;

/// Below all logits, and no infinity, which shaders cannot write.
const LEAST: f32 = -3.0e38;

/// Of x and weight.
#[derive(Debug)]
pub(crate) struct LinearCrossEntropy {
    pub targets: Tensor<1, Whole>,
    pub row_weights: Option<Tensor<1>>,
    pub config: CrossEntropyConfig,
}

/// The gradients of x and weight where that of the loss is 1, the latter in fp32, if they are wanted.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    d_x: Option<CubeTensor>,
    d_weight: Option<CubeTensor>,
    /// Of the gradients.
    dtype: DType,
}

impl Operation<2, CubeTensor> for LinearCrossEntropy {
    type Saved = Saved;
    type Extra = Tensor<1>;

    fn forward(&self, inputs: [CubeTensor; 2], wanted: [bool; 2]) -> (CubeTensor, Option<Saved>, Tensor<1>) {
        let tracked = wanted.contains(&true);
        let [(x, [count, width]), (weight, [classes, _])] = inputs.map(rows);
        let chunks = (count * classes).div_ceil(CHUNK / self.config.rows_divisor.max(1)).max(1);
        let chunk = count.div_ceil(chunks).next_multiple_of(TILE).max(TILE);
        let [losses, hits] = [(); 2].map(|()| empty(&x, [count, 1], DType::F32));
        let padded = padded(classes);
        let weight = if padded > classes { with_zeros(weight, padded) } else { weight };
        let of_x = outer::<2>(x.clone());
        let (mut d_x, mut d_weight) = (Vec::new(), None::<CubeTensor>);
        for start in (0..count).step_by(chunk) {
            let length = chunk.min(count - start);
            let rows = inner(of_x.clone().narrow(0, start, length));
            let logits = product(rows.clone(), transposed(weight.clone()), x.dtype);
            self.run(&logits, classes, [&losses, &hits], start, tracked);
            if wanted[0] {
                d_x.push(outer::<2>(product(logits.clone(), weight.clone(), x.dtype)));
            }
            if wanted[1] {
                d_weight = Some(match d_weight {
                    None => product(transposed(logits), rows, DType::F32),
                    Some(sum) => add_product(sum, transposed(logits), rows),
                });
            }
        }
        // Without a row, there is no gradient yet.
        let zeros = |shape: [usize; 2]| inner(Tensor::<2>::zeros(shape, (&of_x.device(), x.dtype)));
        let d_x = wanted[0].then(|| match d_x.len() {
            0 => zeros([count, width]),
            1 => inner(d_x.remove(0)),
            _ => inner(Tensor::cat(d_x, 0)),
        });
        let d_weight = wanted[1].then(|| match d_weight {
            None => cast(zeros([classes, width]), DType::F32),
            Some(d_weight) => inner(outer::<2>(d_weight).narrow(0, 0, classes)),
        });
        let saved = tracked.then_some(Saved { d_x, d_weight, dtype: x.dtype });
        let [loss, hits] = [losses, hits].map(|rows| column_sums(rows, DType::F32));
        (loss, saved, Tensor::from_primitive::<Cube>(hits))
    }

    fn backward(self, saved: Saved, gradient: CubeTensor, wanted: [bool; 2]) -> [Option<CubeTensor>; 2] {
        let Saved { d_x, d_weight, dtype } = saved;
        let [x, weight] = wanted;
        let factor = cast(gradient, DType::F32);
        [(x, d_x), (weight, d_weight)]
            .map(|(wanted, slope)| slope.filter(|_| wanted).map(|slope| scaled(slope, &factor, dtype)))
    }
}

impl LinearCrossEntropy {
    /// The losses and hits of some rows, and with `gradient` the gradient of their logits in their place.
    fn run(
        &self,
        logits: &CubeTensor,
        classes: usize,
        [losses, hits]: [&CubeTensor; 2],
        start: usize,
        gradient: bool,
    ) {
        let [length, padded] = [logits.meta.shape()[0], logits.meta.shape()[1]];
        let stride = if length > 1 { logits.meta.strides()[0] } else { padded };
        let sizes = logits.client.io_optimized_vector_sizes(logits.dtype.size());
        // Rows may be further apart than they are long, so that vectors are aligned.
        let vector = sizes.filter(|size| stride.is_multiple_of(*size) && length > 1).max().unwrap_or(1);
        let Ok(targets) = self.targets.clone().without_autodiff().try_into_primitive::<Cube>() else {
            unreachable!("targets are on the device of the logits")
        };
        let targets = burn_cubecl::kernel::into_contiguous(targets);
        let weights = self.row_weights.clone().map(|weights| {
            let weights = weights.without_autodiff().cast(FloatDType::F32);
            burn_cubecl::kernel::into_contiguous(inner(weights.unsqueeze::<2>()))
        });
        let has_weights = weights.is_some();
        let (cubes, _) = cubes(length);
        // Of long rows few are read at a time, so that a second pass finds them in the cache.
        let most = logits.client.properties().hardware.max_units_per_cube;
        let units = CubeDim::new_1d(if classes >= LONG { most.min(MAX_UNITS) } else { UNITS });
        let address = logits.required_address_type().max(targets.required_address_type());
        // SAFETY: it reads and writes `length` rows of `classes` elements, `stride` apart, and of targets, weights and results those of the same rows.
        unsafe {
            cross_entropy_kernel::launch_unchecked(
                &logits.client,
                cubes,
                units,
                address,
                vector,
                logits.clone().into_buffer_arg(),
                targets.clone().into_buffer_arg(),
                weights.unwrap_or_else(|| empty(logits, [1], DType::F32)).into_buffer_arg(),
                losses.clone().into_buffer_arg(),
                hits.clone().into_buffer_arg(),
                start,
                length,
                classes,
                stride / vector,
                self.config.label_smoothing as f32,
                self.config.z_loss as f32,
                has_weights,
                self.config.label_smoothing != 0.0,
                gradient,
                [element(logits), element(&targets)],
            );
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn cross_entropy_kernel<T: Float, I: Int, N: Size>(
    logits: &mut [Vector<T, N>],
    targets: &[I],
    weights: &[f32],
    losses: &mut [f32],
    hits: &mut [f32],
    first: usize,
    rows: usize,
    classes: usize,
    stride: usize,
    label_smoothing: f32,
    z_loss: f32,
    #[comptime] has_weights: bool,
    #[comptime] is_smoothed: bool,
    #[comptime] gradient: bool,
    #[define(T, I)] _elements: [ElemType; 2],
) {
    let whole = classes / N::value();
    let rest = classes % N::value();
    let share = label_smoothing / f32::cast_from(classes as u32);
    let mut row = CUBE_POS_X as usize;
    while row < rows {
        let start = row * stride;
        let target = i32::cast_from(targets[first + row]);
        let mut weight = 1.0f32;
        if comptime!(has_weights) {
            weight = weights[first + row];
        }
        let counts = target >= 0 && weight != 0.0f32;
        let target = select(counts, target, 0i32) as usize;
        let is_class = target < classes;
        let target = min(target, classes - 1);

        // Of each lane, its highest logit, and the sum of exponentials of differences from it.
        let mut highest = Vector::<f32, N>::new(LEAST);
        let mut sums = Vector::<f32, N>::new(0.0f32);
        let mut total = Vector::<f32, N>::new(0.0f32);
        let mut column = UNIT_POS as usize;
        while column < whole {
            let value = Vector::<f32, N>::cast_from(logits[start + column]);
            let difference = value - highest;
            let small = (-difference.abs()).exp();
            let one = Vector::<f32, N>::new(1.0f32);
            sums =
                select_many(difference.greater_than(&Vector::new(0.0f32)), sums * small + one, sums + small);
            highest = max(highest, value);
            if comptime!(is_smoothed) {
                total += value;
            }
            column += CUBE_DIM as usize;
        }
        let mut top = LEAST.runtime();
        #[unroll]
        for lane in 0..N::value() {
            top = max(top, highest.extract(lane));
        }
        let mut sum = (sums * (highest - Vector::new(top)).exp()).vector_sum();
        let mut all = total.vector_sum();
        // The rest of the row, an element a unit.
        if (UNIT_POS as usize) < rest {
            let value = f32::cast_from(logits[start + whole].extract_dynamic(UNIT_POS as usize));
            let higher = max(top, value);
            sum = sum * (top - higher).exp() + (value - higher).exp();
            top = higher;
            all += value;
        }
        let of_cube = cube_max(top);
        let sum = cube_sum(sum * (top - of_cube).exp());
        let logarithm = sum.ln() + of_cube;
        if comptime!(is_smoothed) {
            all = cube_sum(all);
        }
        let value = f32::cast_from(logits[start + target / N::value()].extract_dynamic(target % N::value()));
        // Of several that are as high, the first class counts.
        let mut earlier = 0.0f32;
        if value >= of_cube {
            let mut column = UNIT_POS as usize;
            while column * N::value() < target {
                let values = Vector::<f32, N>::cast_from(logits[start + column]);
                #[unroll]
                for lane in 0..N::value() {
                    let is_one = column * N::value() + lane < target && values.extract(lane) >= of_cube;
                    earlier = select(is_one, 1.0f32, earlier);
                }
                column += CUBE_DIM as usize;
            }
        }
        let earlier = cube_max(earlier);
        // Before the row is overwritten, all have read it.
        sync_cube();
        if UNIT_POS == 0 {
            let mut loss = logarithm - value * (1.0f32 - label_smoothing) + z_loss * logarithm * logarithm;
            if comptime!(is_smoothed) {
                loss -= share * all;
            }
            // Of a target that is none, an infinite one, which shaders cannot write as a constant.
            let none = (logarithm * logarithm + 1000.0f32).exp();
            losses[first + row] = select(counts, select(is_class, loss * weight, none), 0.0f32);
            // The highest logit leaves out those that are no numbers; the logarithm does not, which is at least as high.
            let is_hit = value >= of_cube && earlier == 0.0f32 && logarithm >= of_cube;
            hits[first + row] = select(counts && is_hit, weight, 0.0f32);
        }
        if comptime!(gradient) {
            let factor = weight * (1.0f32 + 2.0f32 * z_loss * logarithm);
            let away = weight * share;
            let of_target = weight * (1.0f32 - label_smoothing);
            let mut column = UNIT_POS as usize;
            while column < stride {
                // Of a row that does not count, even if its logits are no numbers.
                let mut slope = Vector::<f32, N>::new(0.0f32);
                if counts {
                    let value = Vector::<f32, N>::cast_from(logits[start + column]);
                    slope = (value - Vector::new(logarithm)).exp() * Vector::new(factor) - Vector::new(away);
                    if column == target / N::value() {
                        let lane = target % N::value();
                        slope.insert_dynamic(lane, slope.extract_dynamic(lane) - of_target);
                    }
                }
                if column >= whole {
                    // Beyond the classes there is nothing to learn.
                    #[unroll]
                    for lane in 0..N::value() {
                        if column > whole || lane >= rest {
                            slope.insert(lane, 0.0f32);
                        }
                    }
                }
                logits[start + column] = Vector::cast_from(slope);
                column += CUBE_DIM as usize;
            }
        }
        sync_cube();
        row += CUBE_COUNT_X as usize;
    }
}

/// How many classes products are made of: libraries are several times slower where a size is not a multiple of eight numbers of 16 bits (seen with cuBLAS 13).
fn padded(classes: usize) -> usize {
    let is_slow = has_library() && !classes.is_multiple_of(8);
    if is_slow { classes.next_multiple_of(TILE) } else { classes }
}

/// The rows, and rows of zeros up to a number.
fn with_zeros(weight: CubeTensor, rows: usize) -> CubeTensor {
    let [classes, width] = [weight.meta.shape()[0], weight.meta.shape()[1]];
    let zeros = Tensor::<2>::zeros([rows, width], (&outer::<2>(weight.clone()).device(), weight.dtype));
    inner(zeros.slice_assign([0..classes, 0..width], outer(weight)))
}

/// The sum over all units of the cube.
#[cube]
fn cube_sum(value: f32) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(256usize);
    let of_plane = plane_sum(value);
    if UNIT_POS_PLANE == 0 {
        shared[PLANE_POS as usize] = of_plane;
    }
    sync_cube();
    let mut sum = 0.0f32;
    let mut plane = UNIT_POS_PLANE;
    while plane < CUBE_DIM / PLANE_DIM {
        sum += shared[plane as usize];
        plane += PLANE_DIM;
    }
    let sum = plane_sum(sum);
    sync_cube();
    sum
}

/// The highest value of all units of the cube.
#[cube]
fn cube_max(value: f32) -> f32 {
    let mut shared = Shared::<[f32]>::new_slice(256usize);
    let of_plane = plane_max(value);
    if UNIT_POS_PLANE == 0 {
        shared[PLANE_POS as usize] = of_plane;
    }
    sync_cube();
    let mut highest = LEAST.runtime();
    let mut plane = UNIT_POS_PLANE;
    while plane < CUBE_DIM / PLANE_DIM {
        highest = max(highest, shared[plane as usize]);
        plane += PLANE_DIM;
    }
    let highest = plane_max(highest);
    sync_cube();
    highest
}

/// A tensor times a number of fp32 on the device, in another type.
fn scaled(tensor: CubeTensor, factor: &CubeTensor, dtype: DType) -> CubeTensor {
    let (tensor, [count, width]) = rows(tensor);
    let output = empty(&tensor, tensor.meta.shape().clone(), dtype);
    let elements = count * width;
    let vector = vector_size(&[&tensor, &output], elements);
    let (cubes, units) = unit_for_each(elements / vector);
    // SAFETY: it reads and writes as many elements as both tensors have, and reads one factor.
    unsafe {
        scaled_kernel::launch_unchecked(
            &tensor.client,
            cubes,
            units,
            tensor.required_address_type(),
            vector,
            tensor.clone().into_buffer_arg(),
            factor.clone().into_buffer_arg(),
            output.clone().into_buffer_arg(),
            elements / vector,
            [element(&tensor), element(&output)],
        );
    }
    output
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn scaled_kernel<T: Float, U: Float, N: Size>(
    tensor: &[Vector<T, N>],
    factor: &[f32],
    output: &mut [Vector<U, N>],
    count: usize,
    #[define(T, U)] _elements: [ElemType; 2],
) {
    let mut index = ABSOLUTE_POS;
    while index < count {
        output[index] =
            Vector::cast_from(Vector::<f32, N>::cast_from(tensor[index]) * Vector::new(factor[0]));
        index += unit_count();
    }
}

fn inner(tensor: Tensor<2>) -> CubeTensor {
    let Ok(tensor) = tensor.try_into_primitive::<Cube>() else {
        unreachable!("operations are run on tensors of their devices")
    };
    tensor
}

fn outer<const D: usize>(tensor: CubeTensor) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(tensor)
}
