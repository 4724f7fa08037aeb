//! The forward pass: a cube has some queries of a head and goes through the keys that they see, with the softmax as far as it has come.

use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::{
    PLANE, Place, ROWS, Tiling, as_left, fetch, lefts, multiply, right_of_columns, right_of_rows, store,
    write, zeros,
};
use super::visible_keys::{Sizes, is_partial, keys_of, keys_of_some};

/// That of a key that is not seen: finite also when it is scaled.
const LEAST: f32 = -1.0e30;

/// Below all scores of keys that are seen, and so far above [`LEAST`] that the difference has no exponential.
const FLOOR: f32 = -1.0e20;

/// Cubes are `[tiles of queries, heads, sequences]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn forward_kernel<T: Float>(
    q: &[Vector<T, Const<8>>],
    k: &[Vector<T, Const<8>>],
    v: &[Vector<T, Const<8>>],
    ranges: &[u32],
    output: &mut [Vector<T, Const<2>>],
    logarithms: &mut [f32],
    q_at: Place,
    k_at: Place,
    v_at: Place,
    output_at: Place,
    sizes: Sizes,
    group: usize,
    scale: f32,
    #[comptime] tiling: Tiling,
    #[define(T)] _element: ElemType,
) {
    let (batch, head) = (CUBE_POS_Z as usize, CUBE_POS_Y as usize);
    let lane = UNIT_POS_PLANE as usize;
    let block = comptime!(tiling.block());
    let rows = comptime!(tiling.rows);
    // The last queries see most, so they begin first.
    let first = (sizes.queries.div_ceil(block) - 1 - CUBE_POS_X as usize) * block;
    let own = first + (UNIT_POS_X as usize / PLANE) * comptime!(ROWS * tiling.blocks);

    let mut tiles =
        Shared::<[Vector<T, Const<8>>]>::new_aligned_slice(comptime!(4 * tiling.vectors()), 16usize);
    let mut held = Array::<Vector<T, Const<8>>>::new(comptime!(tiling.held(block)));
    let start = q_at.first + batch * q_at.batch + head * q_at.head;
    fetch::<T>(q, start, q_at.position, first, sizes.queries, &mut held, block, tiling);
    store::<T>(&held, &mut tiles, 0usize, block, tiling);
    sync_cube();
    let queries = lefts::<T>(&tiles, 0usize, own - first, tiling);
    sync_cube();

    let k_start = k_at.first + batch * k_at.batch + (head / group) * k_at.head;
    let v_start = v_at.first + batch * v_at.batch + (head / group) * v_at.head;
    let (from, to) = keys_of_some(first, batch, ranges, &sizes, block, tiling.visible);
    let mut key = (from / rows) * rows;
    let mut next_k = Array::<Vector<T, Const<8>>>::new(comptime!(tiling.held(rows)));
    let mut next_v = Array::<Vector<T, Const<8>>>::new(comptime!(tiling.held(rows)));
    fetch::<T>(k, k_start, k_at.position, key, sizes.keys, &mut next_k, rows, tiling);
    fetch::<T>(v, v_start, v_at.position, key, sizes.keys, &mut next_v, rows, tiling);
    store::<T>(&next_k, &mut tiles, 0usize, rows, tiling);
    store::<T>(&next_v, &mut tiles, comptime!(tiling.vectors()).runtime(), rows, tiling);
    sync_cube();

    let steps = comptime!(tiling.steps());
    let columns = comptime!(rows / 8);
    let parts = comptime!(2 * tiling.blocks);
    let mut mixed = zeros(comptime!(2 * parts * steps));
    let mut highest = Array::<f32>::new(parts);
    let mut sums = Array::<f32>::new(parts);
    #[unroll]
    for part in 0..parts {
        highest[part] = LEAST.runtime();
        sums[part] = 0.0f32.runtime();
    }
    let mut buffer = 0usize;
    while key < to {
        let next = key + rows;
        if next < to {
            fetch::<T>(k, k_start, k_at.position, next, sizes.keys, &mut next_k, rows, tiling);
            fetch::<T>(v, v_start, v_at.position, next, sizes.keys, &mut next_v, rows, tiling);
        }
        let keys = buffer * comptime!(2 * tiling.vectors());
        let values = keys + comptime!(tiling.vectors());

        let mut scores = zeros(comptime!(parts * columns));
        #[unroll]
        for pair in 0..comptime!(columns / 2) {
            #[unroll]
            for step in 0..steps {
                let rights = right_of_rows::<T>(&tiles, keys, comptime!(16 * pair), step, tiling);
                #[unroll]
                for block in 0..comptime!(tiling.blocks) {
                    let left = comptime!(block * steps + step);
                    let tile = comptime!(block * columns + 2 * pair);
                    multiply::<T>(&queries, &rights, &mut scores, left, tile);
                }
            }
        }
        if is_partial(first, key, batch, ranges, &sizes, block, rows, tiling.visible) {
            #[unroll]
            for part in 0..parts {
                let row = own + comptime!(ROWS * (part / 2) + 8 * (part % 2)) + lane / 4;
                let (from, to) = keys_of(row, batch, ranges, &sizes, tiling.visible);
                #[unroll]
                for column in 0..columns {
                    let place = comptime!(2 * ((part / 2) * columns + column) + part % 2);
                    let mut value = scores[place];
                    #[unroll]
                    for element in 0..2usize {
                        let other = key + comptime!(8 * column + element) + 2 * (lane % 4);
                        if other < from || other >= to {
                            value.insert(element, LEAST);
                        }
                    }
                    scores[place] = value;
                }
            }
        }
        #[unroll]
        for part in 0..parts {
            let before = highest[part];
            let mut top = before;
            #[unroll]
            for column in 0..columns {
                let value = scores[comptime!(2 * ((part / 2) * columns + column) + part % 2)];
                top = max(top, max(value.extract(0usize), value.extract(1usize)));
            }
            top = max(top, plane_shuffle_xor(top, 1u32));
            top = max(top, plane_shuffle_xor(top, 2u32));
            highest[part] = top;
            let factor = ((before - top) * scale).exp();
            // One operation for each score, a product and a difference, is exact before it is rounded: where no key was seen yet, less than LEAST has to be taken away, or the
            // rounding of that product is left.
            let scaled = Vector::<f32, Const<2>>::new(max(top, FLOOR) * scale);
            let mut sum = Vector::<f32, Const<2>>::new(0.0f32);
            #[unroll]
            for column in 0..columns {
                let place = comptime!(2 * ((part / 2) * columns + column) + part % 2);
                let value = (scores[place] * Vector::new(scale) - scaled).exp();
                scores[place] = value;
                sum += value;
            }
            sums[part] = sums[part] * factor + sum.extract(0usize) + sum.extract(1usize);
            #[unroll]
            for tile in 0..comptime!(2 * steps) {
                let place = comptime!(2 * (2 * (part / 2) * steps + tile) + part % 2);
                mixed[place] *= Vector::new(factor);
            }
        }
        #[unroll]
        for pair in 0..comptime!(columns / 2) {
            let mut shares = Array::<Vector<T, Const<2>>>::new(comptime!(4 * tiling.blocks));
            #[unroll]
            for block in 0..comptime!(tiling.blocks) {
                as_left::<T>(&scores, &mut shares, block, comptime!(block * columns + 2 * pair));
            }
            #[unroll]
            for step in 0..steps {
                let rights = right_of_columns::<T>(&tiles, values, comptime!(16 * pair), step, tiling);
                #[unroll]
                for block in 0..comptime!(tiling.blocks) {
                    let tile = comptime!(2 * (block * steps + step));
                    multiply::<T>(&shares, &rights, &mut mixed, block, tile);
                }
            }
        }
        buffer = 1 - buffer;
        if next < to {
            let keys = buffer * comptime!(2 * tiling.vectors());
            store::<T>(&next_k, &mut tiles, keys, rows, tiling);
            store::<T>(&next_v, &mut tiles, keys + comptime!(tiling.vectors()), rows, tiling);
        }
        sync_cube();
        key = next;
    }

    let mut factors = Array::<f32>::new(parts);
    #[unroll]
    for part in 0..parts {
        let mut sum = sums[part];
        sum += plane_shuffle_xor(sum, 1u32);
        sum += plane_shuffle_xor(sum, 2u32);
        let row = own + comptime!(ROWS * (part / 2) + 8 * (part % 2)) + lane / 4;
        let (from, to) = keys_of(row, batch, ranges, &sizes, tiling.visible);
        factors[part] = select(from < to, 1.0f32 / sum, 0.0f32);
        let of_row = lane % 4;
        if row < sizes.queries && of_row == 0 {
            let place = (batch * CUBE_COUNT_Y as usize + head) * sizes.queries + row;
            logarithms[place] = highest[part] * scale + sum.ln();
        }
    }
    let start = output_at.first + batch * output_at.batch + head * output_at.head;
    write::<T>(&mixed, output, start, output_at.position, own, sizes.queries, &factors, tiling);
}
