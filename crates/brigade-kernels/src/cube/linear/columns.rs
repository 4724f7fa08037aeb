//! Sums of columns.

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::cast;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::launch::{element, empty, reshaped, rows, vector_size};

/// Rows whose sum a cube makes.
pub(crate) const ROWS: usize = 128;

/// Rows that a unit reads before it needs any of them.
pub(crate) const AHEAD: usize = 4;

/// Parts that cubes have at a time: what all devices take in one dimension.
const PARTS: usize = 32_768;

/// Columns of a cube, in vectors.
const COLUMNS: u32 = 32;

/// Units of a cube that share a column.
const LANES: u32 = 8;

/// The cubes and units that have this many columns, in vectors, and this many parts of [`ROWS`] rows.
pub(crate) fn column_units(columns: usize, parts: usize) -> (CubeCount, CubeDim) {
    let count =
        CubeCount::Static(columns.div_ceil(COLUMNS as usize).max(1) as u32, parts.min(PARTS) as u32, 1);
    (count, CubeDim::new_2d(COLUMNS, LANES))
}

/// The sums of a matrix's columns, in this type: of [`ROWS`] rows at a time, then of these sums.
pub(crate) fn column_sums(matrix: CubeTensor, dtype: DType) -> CubeTensor {
    let (mut matrix, [mut count, width]) = rows(matrix);
    loop {
        let parts = count.div_ceil(ROWS).max(1);
        let sums = empty(&matrix, [parts, width], DType::F32);
        let vector = vector_size(&[&matrix, &sums], width);
        let (cubes, units) = column_units(width / vector, parts);
        // SAFETY: each cube reads its rows of `width` elements, and writes one row of the result.
        unsafe {
            column_sums_kernel::launch_unchecked(
                &matrix.client,
                cubes,
                units,
                matrix.required_address_type(),
                vector,
                matrix.clone().into_buffer_arg(),
                sums.clone().into_buffer_arg(),
                count,
                parts,
                width / vector,
                element(&matrix),
            );
        }
        if parts == 1 {
            return cast(reshaped(sums, [width]), dtype);
        }
        (matrix, count) = (sums, parts);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn column_sums_kernel<T: Float, N: Size>(
    matrix: &[Vector<T, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    parts: usize,
    #[comptime] width: usize,
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
                #[unroll]
                for ahead in 0..AHEAD {
                    let own = row + ahead * CUBE_DIM_Y as usize;
                    let value = Vector::<f32, N>::cast_from(matrix[min(own, end - 1) * width + column]);
                    sum += select(own < end, value, Vector::new(0.0f32));
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

/// The sum over the cube's units that share this unit's column.
#[cube]
pub(crate) fn sum_of_lanes<N: Size>(value: Vector<f32, N>) -> Vector<f32, N> {
    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(256usize);
    shared[UNIT_POS as usize] = value;
    sync_cube();
    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut lane = 0u32;
    while lane < CUBE_DIM_Y {
        sum += shared[(lane * CUBE_DIM_X + UNIT_POS_X) as usize];
        lane += 1;
    }
    sync_cube();
    sum
}
