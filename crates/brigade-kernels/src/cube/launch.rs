//! Tensors as kernels take them, and how many units run.

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::{AddressType, ElemType, FloatKind, IntKind, UIntKind};
use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: u32 = 256;

/// Cubes of a launch at the most: what all devices take in one dimension. Kernels continue with what is left.
const CUBES: usize = 65_535;

/// Memory on the device of another tensor, with any values, one element after another.
pub(super) fn empty(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// The type of a tensor's elements for a kernel.
pub(super) fn element(tensor: &CubeTensor) -> ElemType {
    match tensor.dtype {
        DType::F32 => FloatKind::F32.into(),
        DType::F16 => FloatKind::F16.into(),
        DType::BF16 => FloatKind::BF16.into(),
        DType::I32 => ElemType::Int(IntKind::I32),
        DType::I64 => ElemType::Int(IntKind::I64),
        DType::U32 => ElemType::UInt(UIntKind::U32),
        dtype => panic!("no kernel takes {dtype:?}"),
    }
}

/// The tensor with its elements one after another, as rows of its last dimension: how many, and how long.
pub(super) fn rows(tensor: CubeTensor) -> (CubeTensor, [usize; 2]) {
    let tensor = into_contiguous(tensor);
    let shape = tensor.meta.shape();
    let width = shape.last().copied().unwrap_or(1);
    let rows = shape[..shape.len().saturating_sub(1)].iter().product();
    (tensor, [rows, width])
}

/// The tensor in another shape of as many elements. Its elements must be one after another.
pub(super) fn reshaped(tensor: CubeTensor, shape: impl Into<Shape>) -> CubeTensor {
    CubeTensor::new_contiguous(tensor.client, tensor.device, shape.into(), tensor.handle, tensor.dtype)
}

/// The tensor with its last two dimensions exchanged.
pub(super) fn transposed(mut tensor: CubeTensor) -> CubeTensor {
    let rank = tensor.meta.num_dims();
    tensor.meta.swap(rank - 2, rank - 1);
    tensor
}

/// How many elements of a row a unit of a kernel reads at once: a divisor of its width that the tensors' types allow.
pub(super) fn vector_size(tensors: &[&CubeTensor], width: usize) -> usize {
    let of = |tensor: &&CubeTensor| {
        let sizes = tensor.client.io_optimized_vector_sizes(tensor.dtype.size());
        sizes.filter(|size| width.is_multiple_of(*size)).max().unwrap_or(1)
    };
    tensors.iter().map(of).min().unwrap_or(1)
}

/// So many cubes of [`UNITS`] units that each plane has a row, or as many as there can be.
pub(super) fn plane_for_each(like: &CubeTensor, rows: usize) -> (CubeCount, CubeDim) {
    let planes = UNITS / like.client.properties().hardware.plane_size_max.max(1);
    cubes(rows.div_ceil(planes.max(1) as usize))
}

/// What can count the elements of a kernel with a unit for each, which goes a launch beyond the last one.
pub(super) fn counter_of(elements: usize) -> AddressType {
    AddressType::from_len(elements.saturating_add(CUBES * UNITS as usize))
}

/// So many cubes of [`UNITS`] units that each unit has an element, or as many as there can be.
pub(super) fn unit_for_each(elements: usize) -> (CubeCount, CubeDim) {
    cubes(elements.div_ceil(UNITS as usize))
}

/// So many cubes of [`UNITS`] units, or as many as there can be.
pub(super) fn cubes(count: usize) -> (CubeCount, CubeDim) {
    (CubeCount::Static(count.clamp(1, CUBES) as u32, 1, 1), CubeDim::new_1d(UNITS))
}

/// The first row of this plane.
#[cube]
pub(super) fn plane_index() -> usize {
    CUBE_POS_X as usize * plane_count_of_cube() + PLANE_POS as usize
}

/// How many rows further a plane's next row is.
#[cube]
pub(super) fn plane_count() -> usize {
    CUBE_COUNT_X as usize * plane_count_of_cube()
}

#[cube]
fn plane_count_of_cube() -> usize {
    (CUBE_DIM_X / PLANE_DIM) as usize
}

/// How many elements further a unit's next element is.
#[cube]
pub(super) fn unit_count() -> usize {
    (CUBE_COUNT_X * CUBE_DIM_X) as usize
}
