//! The gradient of queries: a cube has some queries of a head and goes through the keys that they see, whose probabilities it makes again.

use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::{
    PLANE, Place, ROWS, Tiling, as_left, fetch, lefts, multiply, right_of_columns, right_of_rows, store,
    write, zeros,
};
use super::visible_keys::{Sizes, is_partial, keys_of, keys_of_some};

/// Cubes are `[tiles of queries, heads, sequences]`. `dots`: of each query, the sum of its output times the output's gradient.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn queries_kernel<T: Float>(
    q: &[Vector<T, Const<8>>],
    k: &[Vector<T, Const<8>>],
    v: &[Vector<T, Const<8>>],
    gradient: &[Vector<T, Const<8>>],
    ranges: &[u32],
    logarithms: &[f32],
    dots: &[f32],
    d_q: &mut [Vector<T, Const<2>>],
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
    let start = output_at.first + batch * output_at.batch + head * output_at.head;
    fetch::<T>(gradient, start, output_at.position, first, sizes.queries, &mut held, block, tiling);
    store::<T>(&held, &mut tiles, 0usize, block, tiling);
    sync_cube();
    let gradients = lefts::<T>(&tiles, 0usize, own - first, tiling);
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
    let parts = comptime!(2 * tiling.blocks);
    let mut d_queries = zeros(comptime!(2 * parts * steps));
    let mut logarithm = Array::<f32>::new(parts);
    let mut dot = Array::<f32>::new(parts);
    #[unroll]
    for part in 0..parts {
        let row = own + comptime!(ROWS * (part / 2) + 8 * (part % 2)) + lane / 4;
        let place = (batch * CUBE_COUNT_Y as usize + head) * sizes.queries + min(row, sizes.queries - 1);
        logarithm[part] = logarithms[place];
        dot[part] = dots[place];
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
        let partial = is_partial(first, key, batch, ranges, &sizes, block, rows, tiling.visible);
        #[unroll]
        for pair in 0..comptime!(rows / 16) {
            let mut scores = zeros(comptime!(2 * parts));
            let mut slopes = zeros(comptime!(2 * parts));
            #[unroll]
            for step in 0..steps {
                let of_k = right_of_rows::<T>(&tiles, keys, comptime!(16 * pair), step, tiling);
                let of_v = right_of_rows::<T>(&tiles, values, comptime!(16 * pair), step, tiling);
                #[unroll]
                for block in 0..comptime!(tiling.blocks) {
                    let left = comptime!(block * steps + step);
                    multiply::<T>(&queries, &of_k, &mut scores, left, comptime!(2 * block));
                    multiply::<T>(&gradients, &of_v, &mut slopes, left, comptime!(2 * block));
                }
            }
            #[unroll]
            for part in 0..parts {
                #[unroll]
                for half in 0..2 {
                    let place = comptime!(2 * (2 * (part / 2) + half) + part % 2);
                    let scaled = scores[place] * Vector::new(scale) - Vector::new(logarithm[part]);
                    let mut share = scaled.exp();
                    if partial {
                        let row = own + comptime!(ROWS * (part / 2) + 8 * (part % 2)) + lane / 4;
                        let (from, to) = keys_of(row, batch, ranges, &sizes, tiling.visible);
                        #[unroll]
                        for element in 0..2usize {
                            let other = key + comptime!(16 * pair + 8 * half + element) + 2 * (lane % 4);
                            if other < from || other >= to {
                                share.insert(element, 0.0f32);
                            }
                        }
                    }
                    slopes[place] = share * (slopes[place] - Vector::new(dot[part]));
                }
            }
            let mut factors = Array::<Vector<T, Const<2>>>::new(comptime!(4 * tiling.blocks));
            #[unroll]
            for block in 0..comptime!(tiling.blocks) {
                as_left::<T>(&slopes, &mut factors, block, comptime!(2 * block));
            }
            #[unroll]
            for step in 0..steps {
                let rights = right_of_columns::<T>(&tiles, keys, comptime!(16 * pair), step, tiling);
                #[unroll]
                for block in 0..comptime!(tiling.blocks) {
                    let tile = comptime!(2 * (block * steps + step));
                    multiply::<T>(&factors, &rights, &mut d_queries, block, tile);
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
        factors[part] = scale;
    }
    let start = q_at.first + batch * q_at.batch + head * q_at.head;
    write::<T>(&d_queries, d_q, start, q_at.position, own, sizes.queries, &factors, tiling);
}
