//! Sums of squares, added up without rounding. A plane has a chunk.

use burn::backend::Cube;
use burn::tensor::{DType, Int, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::features::AtomicUsage;
use cubecl::prelude::*;

use super::apply::{is_fused, on_device};
use super::launch::{UNITS, cubes, plane_count, plane_index, vector_size};

/// The number of exponents of fp32.
const EXPONENTS: usize = 256;

/// Sums of a set: two for each exponent.
const SUMS: usize = 2 * EXPONENTS;

/// Chunks whose parts of 12 bits, added up, fit into 32 bits.
const MOST: usize = 1 << 20;

/// Cubes of a launch at the most: enough for the largest devices, and few enough that each has many chunks.
const CUBES: usize = 1024;

/// As [`square_sums`](crate::square_sums) says.
pub(crate) fn square_sums(tensors: &[Tensor<1>], chunk: usize) -> Option<Tensor<3, Int>> {
    let takes = |tensor: &Tensor<1>| {
        let dispatched = tensor.clone().into_dispatch();
        is_fused(&[&dispatched])
            && tensor.dtype() == DType::F32
            && on_device(&dispatched).is_some_and(adds_atomically)
    };
    let device = tensors.first().filter(|_| tensors.iter().all(takes))?.device();
    let pieces: Vec<Tensor<1>> = tensors.iter().flat_map(|tensor| pieces(tensor, chunk)).collect();
    // Each piece is added to the last set that has room for it.
    let (mut sets, mut left) = (0, 0);
    let places = pieces.iter().map(|piece| {
        let chunks = piece.dims()[0] / chunk;
        if chunks > left {
            (sets, left) = (sets + 1, MOST);
        }
        left -= chunks;
        sets - 1
    });
    let places: Vec<usize> = places.collect();
    // In one dimension, as rows may be further apart than they are long.
    let sums = Tensor::<1, Int>::zeros([sets.max(1) * SUMS], (&device, DType::U32));
    let Ok(sums) = sums.try_into_primitive::<Cube>() else {
        unreachable!("it was asked whether the tensors are on such a device")
    };
    for (piece, set) in pieces.into_iter().zip(places) {
        add(piece, chunk, &sums, set);
    }
    Some(Tensor::<1, Int>::from_primitive::<Cube>(sums).reshape([sets.max(1), EXPONENTS, 2]))
}

/// Whether whole numbers of 32 bits can be added by several units at once.
fn adds_atomically(tensor: CubeTensor) -> bool {
    let number = Type::atomic(u32::elem_type_native());
    let usage = tensor.client.properties().atomic_type_usage(number);
    usage.contains(AtomicUsage::Add) && usage.contains(AtomicUsage::LoadStore)
}

/// Whole chunks of a tensor, padded with zeros at its end; none has more than a set takes.
fn pieces(tensor: &Tensor<1>, chunk: usize) -> Vec<Tensor<1>> {
    let tensor = tensor.clone().without_autodiff();
    let [elements] = tensor.dims();
    let whole = elements / chunk * chunk;
    let starts = (0..whole).step_by(chunk * MOST);
    let mut pieces: Vec<_> =
        starts.map(|start| tensor.clone().slice(start..(start + chunk * MOST).min(whole))).collect();
    if whole < elements {
        let zeros = Tensor::zeros([whole + chunk - elements], (&tensor.device(), tensor.dtype()));
        pieces.push(Tensor::cat(vec![tensor.slice(whole..elements), zeros], 0));
    }
    pieces
}

/// Adds those of whole chunks.
fn add(tensor: Tensor<1>, chunk: usize, sums: &CubeTensor, set: usize) {
    let Ok(values) = tensor.try_into_primitive::<Cube>() else {
        unreachable!("it was asked whether the tensor is on such a device")
    };
    let values = into_contiguous(values);
    let chunks = values.meta.num_elements() / chunk;
    // It depends on the chunk alone, so that a chunk has the same sum wherever it is.
    let vector = vector_size(&[&values], chunk);
    let planes = UNITS / values.client.properties().hardware.plane_size_max.max(1);
    let (count, units) = cubes(chunks.div_ceil(planes.max(1) as usize).min(CUBES));
    // SAFETY: it reads the elements of each chunk, and adds to the numbers of a set.
    unsafe {
        squares_kernel::launch_unchecked(
            &values.client,
            count,
            units,
            values.required_address_type(),
            vector,
            values.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            chunk / vector,
            chunks,
            set * SUMS,
        );
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn squares_kernel<N: Size>(
    values: &[Vector<f32, N>],
    sums: &mut [Atomic<u32>],
    chunk: usize,
    chunks: usize,
    first: usize,
) {
    let own = Shared::<[Atomic<u32>]>::new_slice(SUMS);
    let unit = UNIT_POS_X as usize;
    #[unroll]
    for part in 0..comptime!(SUMS / UNITS as usize) {
        own[unit + comptime!(part * UNITS as usize)].store(0u32);
    }
    sync_cube();
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
        let bits = u32::reinterpret(plane_sum(sum.vector_sum()));
        if UNIT_POS_PLANE == 0 {
            let exponent = bits >> 23u32;
            if exponent < 255u32 {
                // A normal number begins with a one that is not written.
                let mut fraction = bits & 0x7f_ffffu32;
                if exponent > 0u32 {
                    fraction |= 0x80_0000u32;
                }
                let place = 2 * exponent as usize;
                own[place].fetch_add(fraction & 0xfffu32);
                own[place + 1].fetch_add(fraction >> 12u32);
            } else {
                own[comptime!(SUMS - 1).runtime()].fetch_add(1u32);
            }
        }
        index += plane_count();
    }
    sync_cube();
    #[unroll]
    for part in 0..comptime!(SUMS / UNITS as usize) {
        let place = unit + comptime!(part * UNITS as usize);
        let sum = own[place].load();
        if sum > 0u32 {
            sums[first + place].fetch_add(sum);
        }
    }
}
