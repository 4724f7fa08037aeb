//! Sums of squares. A plane has a chunk.

use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use cubecl::prelude::*;

use super::apply::is_fused;
use super::launch::{empty, plane_count, plane_for_each, plane_index, vector_size};

/// The sums of squares of each `chunk` elements, of which the last may have fewer; none if there are no kernels for this tensor.
pub(crate) fn squares(tensor: &Tensor<1>, chunk: usize) -> Option<Tensor<1>> {
    let dispatch = tensor.clone().into_dispatch();
    if !is_fused(&[&dispatch]) || tensor.dtype() != DType::F32 {
        return None;
    }
    let values = into_contiguous(tensor.clone().without_autodiff().try_into_primitive::<Cube>().ok()?);
    let elements = values.meta.num_elements();
    let chunks = elements.div_ceil(chunk);
    let sums = empty(&values, [chunks], DType::F32);
    let vector = vector_size(&[&values], elements).min(vector_size(&[&values], chunk));
    let (cubes, units) = plane_for_each(&values, chunks);
    // SAFETY: it reads the elements of each chunk that there are, and writes a number for each chunk.
    unsafe {
        squares_kernel::launch_unchecked(
            &values.client,
            cubes,
            units,
            values.required_address_type(),
            vector,
            values.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            elements / vector,
            chunk / vector,
            chunks,
        );
    }
    Some(Tensor::from_primitive::<Cube>(sums))
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_kernel<N: Size>(
    values: &[Vector<f32, N>],
    sums: &mut [f32],
    elements: usize,
    chunk: usize,
    chunks: usize,
) {
    let mut index = plane_index();
    while index < chunks {
        let end = min(index * chunk + chunk, elements);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let mut place = index * chunk + UNIT_POS_PLANE as usize;
        while place < end {
            let value = values[place];
            sum += value * value;
            place += PLANE_DIM as usize;
        }
        let sum = plane_sum(sum.vector_sum());
        if UNIT_POS_PLANE == 0 {
            sums[index] = sum;
        }
        index += plane_count();
    }
}
