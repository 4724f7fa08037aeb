//! The gradients of keys and values: a cube has some keys of a head and goes through the queries that see them, in all heads that share the keys.

use burn_cubecl::cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::tile::{
    PLANE, Place, ROWS, Tiling, as_left, fetch, lefts, multiply, right_of_columns, right_of_rows, store,
    write, zeros,
};
use super::visible_keys::{Sizes, is_partial, keys_of, queries_of_some};

/// Cubes are `[tiles of keys, key heads, sequences]`. `dots`: of each query, the sum of its output times the output's gradient.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn keys_kernel<T: Float>(
    q: &[Vector<T, Const<8>>],
    k: &[Vector<T, Const<8>>],
    v: &[Vector<T, Const<8>>],
    gradient: &[Vector<T, Const<8>>],
    ranges: &[u32],
    logarithms: &[f32],
    dots: &[f32],
    d_k: &mut [Vector<T, Const<2>>],
    d_v: &mut [Vector<T, Const<2>>],
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
    let (batch, key_head) = (CUBE_POS_Z as usize, CUBE_POS_Y as usize);
    let lane = UNIT_POS_PLANE as usize;
    let unit = UNIT_POS_X as usize;
    let block = comptime!(tiling.block());
    let rows = comptime!(tiling.rows);
    let first = CUBE_POS_X as usize * block;
    let own = first + (unit / PLANE) * comptime!(ROWS * tiling.blocks);

    let mut tiles =
        Shared::<[Vector<T, Const<8>>]>::new_aligned_slice(comptime!(4 * tiling.vectors()), 16usize);
    let mut numbers = Shared::<[f32]>::new_slice(comptime!(4 * rows));
    let mut held = Array::<Vector<T, Const<8>>>::new(comptime!(tiling.held(block)));
    let k_start = k_at.first + batch * k_at.batch + key_head * k_at.head;
    fetch::<T>(k, k_start, k_at.position, first, sizes.keys, &mut held, block, tiling);
    store::<T>(&held, &mut tiles, 0usize, block, tiling);
    sync_cube();
    let keys = lefts::<T>(&tiles, 0usize, own - first, tiling);
    sync_cube();
    let v_start = v_at.first + batch * v_at.batch + key_head * v_at.head;
    fetch::<T>(v, v_start, v_at.position, first, sizes.keys, &mut held, block, tiling);
    store::<T>(&held, &mut tiles, 0usize, block, tiling);
    sync_cube();
    let values = lefts::<T>(&tiles, 0usize, own - first, tiling);
    sync_cube();

    // Tiles of queries, those of one head after those of another.
    let (from, to) = queries_of_some(first, batch, ranges, &sizes, block, tiling.visible);
    let from = (from / rows) * rows;
    let of_head = (max(to, from) - from).div_ceil(rows);
    let count = of_head * group;

    let steps = comptime!(tiling.steps());
    let parts = comptime!(2 * tiling.blocks);
    let mut d_keys = zeros(comptime!(2 * parts * steps));
    let mut d_values = zeros(comptime!(2 * parts * steps));
    let mut next_q = Array::<Vector<T, Const<8>>>::new(comptime!(tiling.held(rows)));
    let mut next_g = Array::<Vector<T, Const<8>>>::new(comptime!(tiling.held(rows)));
    let mut next_logarithm = 0.0f32;
    let mut next_dot = 0.0f32;
    let mut buffer = 0usize;
    // One turn ahead of the products.
    let mut turn = 0usize;
    while turn <= count {
        if turn < count {
            let head = key_head * group + turn / of_head;
            let query = from + (turn % of_head) * rows;
            let start = q_at.first + batch * q_at.batch + head * q_at.head;
            fetch::<T>(q, start, q_at.position, query, sizes.queries, &mut next_q, rows, tiling);
            let start = output_at.first + batch * output_at.batch + head * output_at.head;
            fetch::<T>(gradient, start, output_at.position, query, sizes.queries, &mut next_g, rows, tiling);
            if unit < rows {
                let place = (batch * CUBE_COUNT_Y as usize * group + head) * sizes.queries;
                let row = query + unit;
                next_logarithm = 0.0f32;
                next_dot = 0.0f32;
                if row < sizes.queries {
                    next_logarithm = logarithms[place + row];
                    next_dot = dots[place + row];
                }
            }
        }
        if turn > 0 {
            let query = from + ((turn - 1) % of_head) * rows;
            let queries = buffer * comptime!(2 * tiling.vectors());
            let gradients = queries + comptime!(tiling.vectors());
            let of_queries = buffer * comptime!(2 * rows);
            let partial = is_partial(query, first, batch, ranges, &sizes, rows, block, tiling.visible);
            #[unroll]
            for pair in 0..comptime!(rows / 16) {
                // Transposed: keys are rows.
                let mut scores = zeros(comptime!(2 * parts));
                let mut slopes = zeros(comptime!(2 * parts));
                #[unroll]
                for step in 0..steps {
                    let of_q = right_of_rows::<T>(&tiles, queries, comptime!(16 * pair), step, tiling);
                    let of_g = right_of_rows::<T>(&tiles, gradients, comptime!(16 * pair), step, tiling);
                    #[unroll]
                    for block in 0..comptime!(tiling.blocks) {
                        let left = comptime!(block * steps + step);
                        multiply::<T>(&keys, &of_q, &mut scores, left, comptime!(2 * block));
                        multiply::<T>(&values, &of_g, &mut slopes, left, comptime!(2 * block));
                    }
                }
                #[unroll]
                for half in 0..2 {
                    let mut logarithm = Vector::<f32, Const<2>>::new(0.0f32);
                    let mut dot = Vector::<f32, Const<2>>::new(0.0f32);
                    #[unroll]
                    for element in 0..2usize {
                        let place = of_queries + comptime!(16 * pair + 8 * half + element) + 2 * (lane % 4);
                        logarithm.insert(element, numbers[place]);
                        dot.insert(element, numbers[place + rows]);
                    }
                    #[unroll]
                    for part in 0..parts {
                        let place = comptime!(2 * (2 * (part / 2) + half) + part % 2);
                        let mut share = (scores[place] * Vector::new(scale) - logarithm).exp();
                        if partial {
                            let row = own + comptime!(ROWS * (part / 2) + 8 * (part % 2)) + lane / 4;
                            #[unroll]
                            for element in 0..2usize {
                                let other =
                                    query + comptime!(16 * pair + 8 * half + element) + 2 * (lane % 4);
                                let (from, to) = keys_of(other, batch, ranges, &sizes, tiling.visible);
                                if row < from || row >= to {
                                    share.insert(element, 0.0f32);
                                }
                            }
                        }
                        scores[place] = share;
                        slopes[place] = share * (slopes[place] - dot);
                    }
                }
                let mut shares = Array::<Vector<T, Const<2>>>::new(comptime!(4 * tiling.blocks));
                let mut factors = Array::<Vector<T, Const<2>>>::new(comptime!(4 * tiling.blocks));
                #[unroll]
                for block in 0..comptime!(tiling.blocks) {
                    as_left::<T>(&scores, &mut shares, block, comptime!(2 * block));
                    as_left::<T>(&slopes, &mut factors, block, comptime!(2 * block));
                }
                #[unroll]
                for step in 0..steps {
                    let of_g = right_of_columns::<T>(&tiles, gradients, comptime!(16 * pair), step, tiling);
                    let of_q = right_of_columns::<T>(&tiles, queries, comptime!(16 * pair), step, tiling);
                    #[unroll]
                    for block in 0..comptime!(tiling.blocks) {
                        let tile = comptime!(2 * (block * steps + step));
                        multiply::<T>(&shares, &of_g, &mut d_values, block, tile);
                        multiply::<T>(&factors, &of_q, &mut d_keys, block, tile);
                    }
                }
            }
        }
        if turn < count {
            buffer = 1 - buffer;
            let queries = buffer * comptime!(2 * tiling.vectors());
            store::<T>(&next_q, &mut tiles, queries, rows, tiling);
            store::<T>(&next_g, &mut tiles, queries + comptime!(tiling.vectors()), rows, tiling);
            if unit < rows {
                let place = buffer * comptime!(2 * rows) + unit;
                numbers[place] = next_logarithm;
                numbers[place + rows] = next_dot;
            }
        }
        sync_cube();
        turn += 1;
    }

    let mut factors = Array::<f32>::new(parts);
    #[unroll]
    for part in 0..parts {
        factors[part] = scale;
    }
    write::<T>(&d_keys, d_k, k_start, k_at.position, own, sizes.keys, &factors, tiling);
    #[unroll]
    for part in 0..parts {
        factors[part] = 1.0f32.runtime();
    }
    write::<T>(&d_values, d_v, v_start, v_at.position, own, sizes.keys, &factors, tiling);
}
