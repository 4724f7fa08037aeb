//! Tiles of vectors in shared memory, and parts of them in the registers of a plane, as the instruction `mma.m16n8k16` takes them (NVIDIA, "PTX ISA", matrix fragments).
//!
//! A product of `[16, 16]` and `[16, 8]` is a plane's. Of the result, unit `4 · row + c` has the columns `2c` and `2c + 1` in the rows `row` and `row + 8`.

use burn_cubecl::cubecl;
use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::super::softmax::Visible;

/// Planes of a cube, and units of a plane.
pub(super) const PLANES: usize = 4;
pub(super) const PLANE: usize = 32;
/// Rows of a plane's products.
pub(super) const ROWS: usize = 16;
const UNITS: usize = PLANES * PLANE;

/// Queries or keys that have bounds of their own.
pub(super) const BLOCK: usize = PLANES * ROWS;

/// Numbers that are read at once from memory: 16 bytes.
pub(super) const EIGHT: usize = 8;

/// Where the vectors of a batch of heads are, in vectors of eight numbers.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Place {
    /// That of the first position of the first head of the first sequence.
    pub first: usize,
    /// From one sequence to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one position to the next.
    pub position: usize,
}

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Numbers of a vector.
    pub depth: usize,
    /// Rows of a tile that is read in each step.
    pub rows: usize,
    /// Rows that a plane has in all of the kernel, in units of [`ROWS`].
    pub blocks: usize,
    pub visible: Visible,
}

impl Tiling {
    /// Vectors of eight numbers in a row.
    pub(super) const fn width(self) -> usize {
        self.depth / EIGHT
    }

    /// Vectors of eight numbers from one row of a tile to the next: one more than needed, so that rows of a product come from different banks.
    pub(super) const fn stride(self) -> usize {
        self.width() + 1
    }

    /// Vectors of a tile.
    pub(super) const fn vectors(self) -> usize {
        self.rows * self.stride()
    }

    /// Products along the depth.
    pub(super) const fn steps(self) -> usize {
        self.depth / 16
    }

    /// Rows that a cube has in all of the kernel.
    pub(super) const fn block(self) -> usize {
        PLANES * ROWS * self.blocks
    }

    /// Vectors that a unit holds of this many rows.
    pub(super) const fn held(self, rows: usize) -> usize {
        rows * self.width() / UNITS
    }
}

/// Reads this unit's part of some rows, with zeros from `end` on.
#[cube]
pub(super) fn fetch<T: Float>(
    from: &[Vector<T, Const<8>>],
    start: usize,
    stride: usize,
    first: usize,
    end: usize,
    held: &mut Array<Vector<T, Const<8>>>,
    #[comptime] rows: usize,
    #[comptime] tiling: Tiling,
) {
    let width = comptime!(tiling.width());
    #[unroll]
    for part in 0..comptime!(tiling.held(rows)) {
        let place = comptime!(part * UNITS) + UNIT_POS_X as usize;
        let row = first + place / width;
        let mut vector = Vector::<T, Const<8>>::new(T::from_int(0));
        if row < end {
            vector = from[start + row * stride + place % width];
        }
        held[part] = vector;
    }
}

/// Writes what [`fetch`] has read to a tile.
#[cube]
pub(super) fn store<T: Float>(
    held: &Array<Vector<T, Const<8>>>,
    tiles: &mut Shared<[Vector<T, Const<8>>]>,
    offset: usize,
    #[comptime] rows: usize,
    #[comptime] tiling: Tiling,
) {
    let width = comptime!(tiling.width());
    #[unroll]
    for part in 0..comptime!(tiling.held(rows)) {
        let place = comptime!(part * UNITS) + UNIT_POS_X as usize;
        tiles[offset + (place / width) * comptime!(tiling.stride()) + place % width] = held[part];
    }
}

/// The left factor `[16, 16]` from a row of a tile, in one step along its columns.
#[cube]
pub(super) fn left<T: Float>(
    tiles: &Shared<[Vector<T, Const<8>>]>,
    offset: usize,
    row: usize,
    #[comptime] step: usize,
    #[comptime] tiling: Tiling,
) -> Array<Vector<T, Const<2>>> {
    let lane = UNIT_POS_PLANE as usize;
    let place = offset + (row + lane % 16) * comptime!(tiling.stride()) + lane / 16 + 2 * step;
    let product = MmaDefinition::<T, T, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Vector<T, Const<8>>, Const<2>>(
        &tiles[place..place + 1],
        MatrixIdent::A,
        4usize,
        false,
    )
}

/// Two right factors `[16, 8]` side by side whose columns are 16 rows of a tile.
#[cube]
pub(super) fn right_of_rows<T: Float>(
    tiles: &Shared<[Vector<T, Const<8>>]>,
    offset: usize,
    #[comptime] row: usize,
    #[comptime] step: usize,
    #[comptime] tiling: Tiling,
) -> Array<Vector<T, Const<2>>> {
    let lane = UNIT_POS_PLANE as usize;
    let own = (lane / 16) * 8 + lane % 8;
    let place = offset + (own + row) * comptime!(tiling.stride()) + (lane / 8) % 2 + 2 * step;
    let product = MmaDefinition::<T, T, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Vector<T, Const<8>>, Const<2>>(
        &tiles[place..place + 1],
        MatrixIdent::B,
        4usize,
        false,
    )
}

/// Two right factors `[16, 8]` side by side whose rows are those of a tile.
#[cube]
pub(super) fn right_of_columns<T: Float>(
    tiles: &Shared<[Vector<T, Const<8>>]>,
    offset: usize,
    #[comptime] row: usize,
    #[comptime] step: usize,
    #[comptime] tiling: Tiling,
) -> Array<Vector<T, Const<2>>> {
    let lane = UNIT_POS_PLANE as usize;
    let place = offset + (row + lane % 16) * comptime!(tiling.stride()) + lane / 16 + 2 * step;
    let product = MmaDefinition::<T, T, f32>::new(16usize, 8usize, 16usize);
    product.load_matrix::<Vector<T, Const<8>>, Const<2>>(
        &tiles[place..place + 1],
        MatrixIdent::B,
        4usize,
        true,
    )
}

/// Adds the products of left factor `block` of several and two right factors to the sums of tile `first` and of the next.
#[cube]
pub(super) fn multiply<T: Float>(
    lefts: &Array<Vector<T, Const<2>>>,
    rights: &Array<Vector<T, Const<2>>>,
    sums: &mut Array<Vector<f32, Const<2>>>,
    #[comptime] block: usize,
    #[comptime] first: usize,
) {
    let product = MmaDefinition::<T, T, f32>::new(16usize, 8usize, 16usize);
    let mut factor = Array::<Vector<T, Const<2>>>::new(4usize);
    #[unroll]
    for part in 0..4 {
        factor[part] = lefts[comptime!(4 * block + part)];
    }
    #[unroll]
    for half in 0..2 {
        let tile = comptime!(2 * (first + half));
        let mut other = Array::<Vector<T, Const<2>>>::new(2usize);
        other[0] = rights[comptime!(2 * half)];
        other[1] = rights[comptime!(2 * half + 1)];
        let mut sum = Array::<Vector<f32, Const<2>>>::new(2usize);
        sum[0] = sums[tile];
        sum[1] = sums[comptime!(tile + 1)];
        let sum = product.execute(&factor, &other, &sum);
        sums[tile] = sum[0];
        sums[comptime!(tile + 1)] = sum[1];
    }
}

/// Loads the left factors of all of a plane's rows from a tile.
#[cube]
pub(super) fn lefts<T: Float>(
    tiles: &Shared<[Vector<T, Const<8>>]>,
    offset: usize,
    row: usize,
    #[comptime] tiling: Tiling,
) -> Array<Vector<T, Const<2>>> {
    let steps = comptime!(tiling.steps());
    let mut all = Array::<Vector<T, Const<2>>>::new(comptime!(4 * tiling.blocks * steps));
    #[unroll]
    for block in 0..comptime!(tiling.blocks) {
        #[unroll]
        for step in 0..steps {
            let one = left::<T>(tiles, offset, row + comptime!(ROWS * block), step, tiling);
            #[unroll]
            for part in 0..4 {
                all[comptime!(4 * (block * steps + step) + part)] = one[part];
            }
        }
    }
    all
}

/// Results of two tiles side by side as the left factor of another product, rounded.
#[cube]
pub(super) fn as_left<T: Float>(
    values: &Array<Vector<f32, Const<2>>>,
    lefts: &mut Array<Vector<T, Const<2>>>,
    #[comptime] block: usize,
    #[comptime] first: usize,
) {
    #[unroll]
    for part in 0..4 {
        lefts[comptime!(4 * block + part)] = Vector::cast_from(values[comptime!(2 * first + part)]);
    }
}

/// Zeros.
#[cube]
pub(super) fn zeros(#[comptime] count: usize) -> Array<Vector<f32, Const<2>>> {
    let mut all = Array::<Vector<f32, Const<2>>>::new(count);
    #[unroll]
    for index in 0..count {
        all[index] = Vector::new(0.0f32);
    }
    all
}

/// Writes a plane's rows of results, times a factor of each.
#[cube]
pub(super) fn write<T: Float>(
    values: &Array<Vector<f32, Const<2>>>,
    to: &mut [Vector<T, Const<2>>],
    start: usize,
    stride: usize,
    first: usize,
    end: usize,
    factors: &Array<f32>,
    #[comptime] tiling: Tiling,
) {
    let lane = UNIT_POS_PLANE as usize;
    let tiles = comptime!(2 * tiling.steps());
    #[unroll]
    for block in 0..comptime!(tiling.blocks) {
        #[unroll]
        for half in 0..2 {
            let row = first + comptime!(ROWS * block + 8 * half) + lane / 4;
            if row < end {
                let factor = Vector::<f32, Const<2>>::new(factors[comptime!(2 * block + half)]);
                let place = (start + row * stride) * 4 + lane % 4;
                #[unroll]
                for tile in 0..tiles {
                    let value = values[comptime!(2 * (block * tiles + tile) + half)] * factor;
                    to[place + comptime!(4 * tile)] = Vector::cast_from(value);
                }
            }
        }
    }
}
