//! Attention whose scores stay in registers, where a device has instructions for products of bf16 matrices (Dao, "FlashAttention-2", 2023).
//!
//! Scores are made a tile at a time, forward and backward, and never written: memory grows with a row's length, not with its square. The gradient of queries has a kernel, and those of
//! keys and values another, so each number is added up by one unit in one order: two runs give the same bits.

mod dots;
mod forward;
mod keys;
mod queries;
mod tile;
mod visible_keys;

use burn::tensor::DType;
use burn_cubecl::cubecl;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::prelude::*;

use self::tile::{EIGHT, PLANE, PLANES, PlaceLaunch, Tiling};
use self::visible_keys::SizesLaunch;
use super::softmax::Visible;
use super::{Attention, numbers};
use crate::cube::launch::{element, empty, unit_for_each};
use crate::mask::Mask;

/// Where the vectors of queries, keys, values and outputs are in their tensors, in numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vectors {
    /// Those before the first vector.
    pub first: usize,
    /// From one sequence to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one position to the next.
    pub position: usize,
}

/// Queries, keys and values.
pub(super) type Inputs<'a> = [&'a CubeTensor; 3];

/// Attention by these kernels.
#[derive(Debug, Clone)]
pub(crate) struct Flash {
    attention: Attention,
    /// Where queries, keys, values and outputs are.
    at: [Vectors; 4],
    window: usize,
    visible: Visible,
    /// With bounds, where queries have ranges; else any numbers.
    ranges: CubeTensor,
}

impl Flash {
    /// If they take this attention of tensors like this one.
    pub fn of(attention: &Attention, at: [Vectors; 4], like: &CubeTensor) -> Option<Self> {
        let shape = attention.shape;
        let (window, visible) = match attention.mask {
            Mask::None => (shape.keys, Visible::All),
            Mask::Causal => (shape.keys, Visible::Causal),
            Mask::Window(window) if window > 0 => (window.min(shape.keys), Visible::Causal),
            Mask::Window(_) => return None,
            Mask::Ranges(_) => (shape.keys, Visible::Ranges),
        };
        let bf16 = ElemType::Float(FloatKind::BF16);
        let features = &like.client.properties().features.matmul;
        let [m, n, k] = [16, 8, 16];
        let product = MmaConfig { a_type: bf16, b_type: bf16, cd_type: FloatKind::F32.into(), m, n, k };
        let has_instructions = features.mma.contains(&product) && features.ldmatrix.contains(&bf16);
        let fits = has_instructions
            && like.dtype == DType::BF16
            && shape.depth == shape.value_depth
            && depth_fits(shape.depth)
            && (1..=shape.keys).contains(&shape.queries)
            && shape.batch.max(shape.heads) <= 65_535
            && attention.scale > 0.0;
        fits.then(|| {
            let ranges = ranges(attention, like);
            Self { attention: attention.clone(), at, window, visible, ranges }
        })
    }

    /// Writes the output, and gives of each query of each head, `[batch, heads, queries]`, the logarithm of the sum of its scores' exponentials.
    pub fn forward(&self, [q, k, v]: Inputs, output: &CubeTensor) -> CubeTensor {
        let shape = self.attention.shape;
        let logarithms = self.numbers(q);
        let tiling = self.tiling(if shape.depth <= 64 { 2 } else { 1 });
        let [q_at, k_at, v_at, output_at] = self.places();
        // SAFETY: it reads and writes the vectors of these heads, which the tensors have.
        unsafe {
            forward::forward_kernel::launch_unchecked(
                &q.client,
                self.cubes(shape.queries.div_ceil(tiling.block()), shape.heads),
                CubeDim::new_1d((PLANES * PLANE) as u32),
                address_type(&[q, k, v, &self.ranges, output, &logarithms]),
                q.clone().into_buffer_arg(),
                k.clone().into_buffer_arg(),
                v.clone().into_buffer_arg(),
                self.ranges.clone().into_buffer_arg(),
                output.clone().into_buffer_arg(),
                logarithms.clone().into_buffer_arg(),
                q_at,
                k_at,
                v_at,
                output_at,
                self.sizes(),
                shape.heads / shape.key_heads,
                self.attention.scale,
                tiling,
                element(q),
            );
        }
        logarithms
    }

    /// Writes the gradients of queries, keys and values where those are in tensors of the same shapes.
    pub fn backward(
        &self,
        [q, k, v]: Inputs,
        [output, gradient, logarithms]: [&CubeTensor; 3],
        [d_q, d_k, d_v]: Inputs,
    ) {
        let shape = self.attention.shape;
        let dots = self.dots(output, gradient);
        let tiling = self.tiling(1);
        let units = CubeDim::new_1d((PLANES * PLANE) as u32);
        let group = shape.heads / shape.key_heads;
        let [q_at, k_at, v_at, output_at] = self.places();
        // SAFETY: they read and write the vectors of these heads, which the tensors have.
        unsafe {
            queries::queries_kernel::launch_unchecked(
                &q.client,
                self.cubes(shape.queries.div_ceil(tiling.block()), shape.heads),
                units,
                address_type(&[q, k, v, &self.ranges, gradient, logarithms, d_q]),
                q.clone().into_buffer_arg(),
                k.clone().into_buffer_arg(),
                v.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                self.ranges.clone().into_buffer_arg(),
                logarithms.clone().into_buffer_arg(),
                dots.clone().into_buffer_arg(),
                d_q.clone().into_buffer_arg(),
                q_at,
                k_at,
                v_at,
                output_at,
                self.sizes(),
                group,
                self.attention.scale,
                tiling,
                element(q),
            );
            let [q_at, k_at, v_at, output_at] = self.places();
            keys::keys_kernel::launch_unchecked(
                &q.client,
                self.cubes(shape.keys.div_ceil(tiling.block()), shape.key_heads),
                units,
                address_type(&[q, k, v, &self.ranges, gradient, logarithms, d_k, d_v]),
                q.clone().into_buffer_arg(),
                k.clone().into_buffer_arg(),
                v.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                self.ranges.clone().into_buffer_arg(),
                logarithms.clone().into_buffer_arg(),
                dots.into_buffer_arg(),
                d_k.clone().into_buffer_arg(),
                d_v.clone().into_buffer_arg(),
                q_at,
                k_at,
                v_at,
                output_at,
                self.sizes(),
                group,
                self.attention.scale,
                tiling,
                element(q),
            );
        }
    }

    /// Of each query of each head, the sum of its output times the output's gradient.
    fn dots(&self, output: &CubeTensor, gradient: &CubeTensor) -> CubeTensor {
        let shape = self.attention.shape;
        let dots = self.numbers(output);
        let width = shape.depth / EIGHT;
        let lanes = width.next_power_of_two();
        let count = shape.batch * shape.heads * shape.queries;
        let (cubes, units) = unit_for_each(count * lanes);
        let [_, _, _, output_at] = self.places();
        // SAFETY: it reads the vectors of these heads, which both tensors have, and writes a number for each.
        unsafe {
            dots::dots_kernel::launch_unchecked(
                &output.client,
                cubes,
                units,
                address_type(&[output, gradient, &dots]),
                output.clone().into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                dots.clone().into_buffer_arg(),
                output_at,
                shape.heads,
                shape.queries,
                count,
                width,
                lanes,
                element(output),
            );
        }
        dots
    }

    /// A number for each query of each head.
    fn numbers(&self, like: &CubeTensor) -> CubeTensor {
        let shape = self.attention.shape;
        empty(like, [shape.batch, shape.heads, shape.queries], DType::F32)
    }

    fn tiling(&self, blocks: usize) -> Tiling {
        let depth = self.attention.shape.depth;
        Tiling { depth, rows: if depth <= 64 { 64 } else { 32 }, blocks, visible: self.visible }
    }

    fn cubes(&self, tiles: usize, heads: usize) -> CubeCount {
        CubeCount::Static(tiles as u32, heads as u32, self.attention.shape.batch as u32)
    }

    fn places(&self) -> [PlaceLaunch; 4] {
        self.at.map(|Vectors { first, batch, head, position }| {
            PlaceLaunch::new(first / EIGHT, batch / EIGHT, head / EIGHT, position / EIGHT)
        })
    }

    fn sizes(&self) -> SizesLaunch {
        SizesLaunch::new(self.attention.shape.queries, self.attention.shape.keys, self.window)
    }
}

/// The ranges of keys that queries see, with bounds; any numbers where there are none.
fn ranges(attention: &Attention, like: &CubeTensor) -> CubeTensor {
    let shape = attention.shape;
    let Mask::Ranges(ranges) = &attention.mask else { return empty(like, [2], DType::U32) };
    let expected = shape.batch * shape.queries;
    assert!(ranges.len() == expected, "{} ranges of keys for {expected} queries", ranges.len());
    numbers(visible_keys::with_bounds(ranges, [shape.batch, shape.queries, shape.keys]), like)
}

/// Whether each unit has as many vectors of a tile as any other.
fn depth_fits(depth: usize) -> bool {
    depth > 0 && depth <= 128 && depth.is_multiple_of(if depth <= 64 { 16 } else { 32 })
}

fn address_type(tensors: &[&CubeTensor]) -> AddressType {
    tensors.iter().map(|tensor| tensor.required_address_type()).max().unwrap_or_default()
}
