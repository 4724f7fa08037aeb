//! Tables of vectors. In the backward pass a cube has a row of the table, whose planes look for its number among a part of all each, if it is among them at all.

use burn::backend::{Cube, DispatchTensor};
use burn::tensor::{DType, Int as Whole, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::apply::on_device;
use super::launch::{cubes, element, empty, rows, unit_count, unit_for_each, vector_size};
use crate::autodiff::graph::Operation;

/// Planes whose votes fit into a number.
const WIDEST: u32 = 32;

/// Numbers of fp32 that planes share at the most: 16 KiB, which all devices have.
const SHARED: usize = 4096;

/// Vectors that a unit reads before it needs any of them, at the most.
const HELD: usize = 16;

/// The rows of a table with these numbers.
#[derive(Debug, Clone)]
pub(crate) struct Embedding {
    pub indices: Tensor<2, Whole>,
    /// The table's.
    pub shape: [usize; 2],
}

impl Embedding {
    /// Whether planes are alike, and no wider than votes.
    pub fn fits(weight: &DispatchTensor) -> bool {
        on_device(weight).is_some_and(|tensor| {
            let hardware = &tensor.client.properties().hardware;
            hardware.plane_size_min == hardware.plane_size_max && hardware.plane_size_max <= WIDEST
        })
    }
}

/// Zeros of a shape, of another tensor's type and on its device.
fn zeros(like: &CubeTensor, shape: [usize; 2]) -> CubeTensor {
    let like = Tensor::<3>::from_primitive::<Cube>(like.clone());
    match Tensor::<2>::zeros(shape, (&like.device(), like.dtype())).try_into_primitive::<Cube>() {
        Ok(zeros) => zeros,
        Err(_) => unreachable!("they are on that device"),
    }
}

impl Operation<1, CubeTensor> for Embedding {
    type Saved = ();
    type Extra = ();

    fn forward(&self, [weight]: [CubeTensor; 1], _: [bool; 1]) -> (CubeTensor, Option<()>, ()) {
        let [batch, positions] = self.indices.dims();
        if batch * positions == 0 {
            // To Burn, a 0 in a new shape is the old shape's number in that place.
            return (empty(&weight, [batch, positions, self.shape[1]], weight.dtype), Some(()), ());
        }
        let weight = Tensor::<2>::from_primitive::<Cube>(weight);
        let indices = self.indices.clone().without_autodiff().reshape([batch * positions]);
        let found = weight.select(0, indices);
        let found = found.reshape([batch, positions, self.shape[1]]).try_into_primitive::<Cube>();
        let Ok(found) = found else { unreachable!("it is on the table's device") };
        (found, Some(()), ())
    }

    fn backward(self, (): (), gradient: CubeTensor, _: [bool; 1]) -> [Option<CubeTensor>; 1] {
        let (gradient, [count, width]) = rows(gradient);
        if count == 0 {
            return [Some(zeros(&gradient, self.shape))];
        }
        let Ok(indices) = self.indices.without_autodiff().try_into_primitive::<Cube>() else {
            unreachable!("numbers of rows are on the table's device")
        };
        let indices = into_contiguous(indices);
        let sums = empty(&gradient, self.shape, gradient.dtype);
        let used = used_rows(&indices, self.shape[0], count);
        let vector = vector_size(&[&gradient], width);
        let plane = gradient.client.properties().hardware.plane_size_max as usize;
        let parts = (width / vector).div_ceil(plane);
        let neighbours = vector_size(&[&indices], count);
        // As many planes as the memory that they share has sums for.
        let most = SHARED / (parts * plane * vector);
        let planes = [8, 4, 2].into_iter().find(|planes| *planes <= most).unwrap_or(1);
        let (cubes, _) = cubes(self.shape[0]);
        let ahead =
            [4, 2].into_iter().find(|ahead| neighbours.is_multiple_of(*ahead) && ahead * parts <= HELD);
        let ahead = ahead.unwrap_or(1);
        // SAFETY: it reads `count` numbers and rows of `width` elements, and writes the table's rows of as many.
        unsafe {
            embedding_kernel::launch_unchecked(
                &gradient.client,
                cubes,
                CubeDim::new_1d((planes * plane) as u32),
                gradient.required_address_type().max(sums.required_address_type()),
                vector,
                neighbours,
                gradient.clone().into_buffer_arg(),
                indices.clone().into_buffer_arg(),
                used.into_buffer_arg(),
                sums.clone().into_buffer_arg(),
                self.shape[0],
                count,
                width / vector,
                parts,
                plane,
                planes,
                neighbours,
                ahead,
                [element(&gradient), element(&indices)],
            );
        }
        [Some(sums)]
    }
}

/// Of each row of a table, whether its number is among some: 1, or 0.
fn used_rows(indices: &CubeTensor, rows: usize, count: usize) -> CubeTensor {
    let device = Tensor::<1, Whole>::from_primitive::<Cube>(indices.clone()).device();
    let used = Tensor::<1, Whole>::zeros([rows], (&device, DType::U32)).try_into_primitive::<Cube>();
    let Ok(used) = used else { unreachable!("it is on the device of the numbers") };
    let (cubes, units) = unit_for_each(count);
    // SAFETY: it reads `count` numbers, and writes those of the table's rows that they name.
    unsafe {
        used_rows_kernel::launch_unchecked(
            &indices.client,
            cubes,
            units,
            indices.required_address_type(),
            indices.clone().into_buffer_arg(),
            used.clone().into_buffer_arg(),
            rows,
            count,
            element(indices),
        );
    }
    used
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn used_rows_kernel<I: Int>(
    indices: &[I],
    used: &mut [Atomic<u32>],
    rows: usize,
    count: usize,
    #[define(I)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < count {
        let row = i32::cast_from(indices[index]);
        if row >= 0 && (row as usize) < rows {
            used[row as usize].store(1u32);
        }
        index += unit_count();
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn embedding_kernel<T: Float, I: Int, N: Size, M: Size>(
    gradient: &[Vector<T, N>],
    indices: &[Vector<I, M>],
    used: &[u32],
    sums: &mut [Vector<T, N>],
    rows: usize,
    count: usize,
    #[comptime] width: usize,
    #[comptime] parts: usize,
    #[comptime] plane: usize,
    #[comptime] planes: usize,
    #[comptime] neighbours: usize,
    #[comptime] ahead: usize,
    #[define(T, I)] _elements: [ElemType; 2],
) {
    let lane = UNIT_POS_PLANE as usize;
    let own = PLANE_POS as usize;
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(planes * parts * plane));
    let mut row = CUBE_POS_X as usize;
    while row < rows {
        let mut sum = Array::<Vector<f32, N>>::new(parts);
        #[unroll]
        for part in 0..parts {
            sum[part] = Vector::new(0.0f32);
        }
        // All units of a cube have the same row, so all or none of them look.
        let mut base = select(used[row] > 0u32, own * plane, count);
        while base < count / M::value() {
            // A unit looks at neighbours, so that a plane finds its rows in their order.
            let place = base + lane;
            let mut found = Vector::<I, M>::new(I::from_int(-1));
            if place < count / M::value() {
                found = indices[place];
            }
            let mut is_there = false;
            #[unroll]
            for index in 0..M::value() {
                is_there = is_there || i32::cast_from(found.extract(index)) == row as i32;
            }
            let mut votes = plane_ballot(is_there).extract(0usize);
            while votes != 0u32 {
                let first = (base + votes.trailing_zeros() as usize) * M::value();
                let found = indices[first / M::value()];
                #[unroll]
                for group in 0..comptime!(neighbours / ahead) {
                    // Rows of several neighbours are read before any of them is needed.
                    let mut read = Array::<Vector<T, N>>::new(comptime!(parts * ahead));
                    #[unroll]
                    for index in 0..ahead {
                        #[unroll]
                        for part in 0..parts {
                            let column = min(part * plane + lane, comptime!(width - 1).runtime());
                            let own = first + comptime!(group * ahead + index);
                            read[comptime!(index * parts + part)] = gradient[own * width + column];
                        }
                    }
                    #[unroll]
                    for index in 0..ahead {
                        let is_row =
                            i32::cast_from(found.extract(comptime!(group * ahead + index))) == row as i32;
                        #[unroll]
                        for part in 0..parts {
                            let value = Vector::<f32, N>::cast_from(read[comptime!(index * parts + part)]);
                            sum[part] += select(is_row, value, Vector::new(0.0f32));
                        }
                    }
                }
                votes &= votes - 1u32;
            }
            base += planes * plane;
        }
        if comptime!(planes > 1) {
            #[unroll]
            for part in 0..parts {
                shared[(own * parts + part) * plane + lane] = sum[part];
            }
            sync_cube();
            // Each plane adds up some of the columns.
            let mut part = own;
            while part < parts {
                let column = part * plane + lane;
                let mut total = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for other in 0..planes {
                    total += shared[(other * parts + part) * plane + lane];
                }
                if column < width {
                    sums[row * width + column] = Vector::cast_from(total);
                }
                part += planes;
            }
            sync_cube();
        } else {
            #[unroll]
            for part in 0..parts {
                let column = part * plane + lane;
                if column < width {
                    sums[row * width + column] = Vector::cast_from(sum[part]);
                }
            }
        }
        row += CUBE_COUNT_X as usize;
    }
}
