//! Heads within positions, and positions within heads.

use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::launch::{element, empty, unit_count, unit_for_each, vector_size};

/// Some heads of vectors `[batch, positions, heads of all, depth]`, as `[batch, heads, positions, depth]` or where they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub batch: usize,
    pub positions: usize,
    pub depth: usize,
    /// Of all vectors of a position.
    pub all: usize,
    /// The first of these heads, and how many they are.
    pub first: usize,
    pub count: usize,
}

impl Heads {
    /// Copies them out.
    pub fn split(self, all: &CubeTensor) -> CubeTensor {
        let all = into_contiguous(all.clone());
        let heads = empty(&all, [self.batch, self.count, self.positions, self.depth], all.dtype);
        self.run(&all, &heads, false);
        heads
    }

    /// Copies contiguous heads to where they are among all, which are contiguous.
    pub fn merge(self, heads: CubeTensor, all: &CubeTensor) {
        self.run(&into_contiguous(heads), all, true);
    }

    fn run(self, from: &CubeTensor, to: &CubeTensor, merge: bool) {
        let Self { batch, positions, depth, all, first, count } = self;
        let vector = vector_size(&[from], depth);
        let elements = batch * count * positions * depth / vector;
        let (cubes, units) = unit_for_each(elements);
        // SAFETY: it reads and writes vectors of these heads, which both tensors have.
        unsafe {
            heads_kernel::launch_unchecked(
                &from.client,
                cubes,
                units,
                from.required_address_type().max(to.required_address_type()),
                vector,
                from.clone().into_buffer_arg(),
                to.clone().into_buffer_arg(),
                elements,
                positions,
                all,
                first,
                count,
                depth / vector,
                merge,
                element(from),
            );
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn heads_kernel<T: Numeric, N: Size>(
    from: &[Vector<T, N>],
    to: &mut [Vector<T, N>],
    elements: usize,
    positions: usize,
    #[comptime] all: usize,
    #[comptime] first: usize,
    #[comptime] count: usize,
    #[comptime] depth: usize,
    #[comptime] merge: bool,
    #[define(T)] _element: ElemType,
) {
    let mut index = ABSOLUTE_POS;
    while index < elements {
        // Neighbours are elements of a head's vector, then heads of a position.
        let within = index % depth;
        let head = (index / depth) % count;
        let position = (index / (depth * count)) % positions;
        let sequence = index / (depth * count * positions);
        let outside = ((sequence * positions + position) * all + first + head) * depth + within;
        let inside = ((sequence * count + head) * positions + position) * depth + within;
        if comptime!(merge) {
            to[outside] = from[inside];
        } else {
            to[inside] = from[outside];
        }
        index += unit_count();
    }
}
