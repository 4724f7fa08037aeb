//! Of each query of each head, the sum of its output times the output's gradient.

use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::Place;
use crate::cube::launch::unit_count;

/// `lanes` units have a vector of `depth` numbers, each of them eight or, beyond a power of two, none.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn dots_kernel<T: Float>(
    output: &[Vector<T, Const<8>>],
    gradient: &[Vector<T, Const<8>>],
    dots: &mut [f32],
    output_at: Place,
    heads: usize,
    queries: usize,
    count: usize,
    #[comptime] width: usize,
    #[comptime] lanes: usize,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    // A multiple of a plane's units, so all of a plane stay together.
    while index < count * lanes {
        let column = index % lanes;
        // Neighbours are heads of a position, whose vectors are side by side.
        let vector = index / lanes;
        let head = vector % heads;
        let position = (vector / heads) % queries;
        let batch = vector / (heads * queries);
        let mut sum = 0.0f32;
        if column < width {
            let place = output_at.first
                + batch * output_at.batch
                + head * output_at.head
                + position * output_at.position
                + column;
            let products =
                Vector::<f32, Const<8>>::cast_from(output[place]) * Vector::cast_from(gradient[place]);
            sum = products.vector_sum();
        }
        #[unroll]
        for bit in 0..comptime!(lanes.ilog2()) {
            sum += plane_shuffle_xor(sum, comptime!(1u32 << bit).runtime());
        }
        if column == 0 {
            dots[(batch * heads + head) * queries + position] = sum;
        }
        index += unit_count();
    }
}
