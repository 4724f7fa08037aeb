//! Sums of squares. A plane has a chunk.

use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use cubecl::prelude::*;

use super::apply::is_fused;
use super::launch::{empty, plane_count, plane_for_each, plane_index, vector_size};

/// The sums of squares of each `chunk` elements, the last of them padded with zeros, in order; none if there are no kernels for this tensor.
pub(crate) fn squares(tensor: &Tensor<1>, chunk: usize) -> Option<Vec<Tensor<1>>> {
    let [elements] = tensor.dims();
    if !is_fused(&[&tensor.clone().into_dispatch()]) || tensor.dtype() != DType::F32 {
        return None;
    }
    let tensor = tensor.clone().without_autodiff();
    let whole = elements / chunk * chunk;
    let mut sums = Vec::new();
    if whole > 0 {
        sums.push(of_chunks(tensor.clone().slice(0..whole), chunk));
    }
    if whole < elements {
        let zeros = Tensor::zeros([whole + chunk - elements], &tensor.device());
        let rest = tensor.slice(whole..elements);
        sums.push(of_chunks(Tensor::cat(vec![rest, zeros], 0), chunk));
    }
    Some(sums)
}

/// Of whole chunks.
fn of_chunks(tensor: Tensor<1>, chunk: usize) -> Tensor<1> {
    let Ok(values) = tensor.try_into_primitive::<Cube>() else {
        unreachable!("it was asked whether the tensor is on such a device")
    };
    let values = into_contiguous(values);
    let elements = values.meta.num_elements();
    let chunks = elements / chunk;
    let sums = empty(&values, [chunks], DType::F32);
    // It depends on the chunk alone, so that a chunk has the same sum wherever it is.
    let vector = vector_size(&[&values], chunk);
    let (cubes, units) = plane_for_each(&values, chunks);
    // SAFETY: it reads the elements of each chunk, and writes a number for each.
    unsafe {
        squares_kernel::launch_unchecked(
            &values.client,
            cubes,
            units,
            values.required_address_type(),
            vector,
            values.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            chunk / vector,
            chunks,
        );
    }
    Tensor::from_primitive::<Cube>(sums)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_kernel<N: Size>(values: &[Vector<f32, N>], sums: &mut [f32], chunk: usize, chunks: usize) {
    let mut index = plane_index();
    while index < chunks {
        let end = index * chunk + chunk;
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
