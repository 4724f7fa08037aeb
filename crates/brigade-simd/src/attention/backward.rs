//! The backward pass: scores are computed again, tile by tile.

use super::rows::{dot, gradient_tile};
use super::{AttentionShape, HeadVectors, HeadVectorsMut, Probabilities, TILE, drop_tile, rounded, tiles};
use crate::{Factor, MatrixMut, Product, convert, matmul, multiply};

/// Gradients of queries, keys and values, from that of the output; they replace what was there.
///
/// With `P = exp(scale · Q · Kᵀ - logarithms)`: `dV = Pᵀ · dO`, `dS = P ∘ (dO · Vᵀ - Σ dO ∘ O) · scale`, `dQ = dS · K` and `dK = dSᵀ · Q`
/// (Dao et al., appendix B.2). With dropout, `P` in `dV` and the product with `Vᵀ` in `dS` are those that are kept, times what they grow by. `output` and `logarithms` are those of the forward pass. Sums are in `f32`; `P` and `dS` are rounded to `T` for their products.
///
/// # Panics
/// If a slice is too short for the shape, or the probability of dropout is not between 0 and 1.
pub fn attention_backward<T: Factor>(
    shape: &AttentionShape,
    [queries, keys, values]: [HeadVectors<'_, T>; 3],
    Probabilities { visible, scale, dropout }: Probabilities<'_>,
    output: HeadVectors<'_, T>,
    logarithms: &[f32],
    gradient: HeadVectors<'_, T>,
    [mut d_queries, mut d_keys, mut d_values]: [HeadVectorsMut<'_, T>; 3],
) {
    shape.check();
    visible.check(shape);
    let (depth, value_depth) = (shape.depth, shape.value_depth);
    let [mut scores, mut slopes] = [(); 2].map(|()| vec![0.0; TILE * TILE]);
    let mut factors = vec![0.0; if dropout.is_some() { TILE * TILE } else { 0 }];
    let mut d_q = vec![0.0; TILE * depth];
    let [mut d_k, mut d_v] = [depth, value_depth].map(|depth| vec![0.0; shape.keys * depth]);
    for batch in 0..shape.batch {
        for key_head in 0..shape.key_heads {
            d_k.fill(0.0);
            d_v.fill(0.0);
            for tile in tiles(shape.queries) {
                let seen = visible.of_tile(shape, batch, tile.clone());
                for head in shape.heads_of(key_head) {
                    d_q.fill(0.0);
                    let q = queries.tile([batch, head], &tile, depth);
                    let d_o = gradient.tile([batch, head], &tile, value_depth);
                    let from = (batch * shape.heads + head) * shape.queries + tile.start;
                    let logarithms = &logarithms[from..][..tile.len()];
                    let mut means = [0.0; TILE];
                    for (mean, query) in means.iter_mut().zip(tile.clone()) {
                        let d_o = gradient.vector([batch, head], query, value_depth);
                        *mean = dot(d_o, output.vector([batch, head], query, value_depth));
                    }
                    for others in seen.tiles() {
                        let k = keys.tile([batch, key_head], &others, depth);
                        let v = values.tile([batch, key_head], &others, value_depth);
                        let size = [tile.len(), others.len()];
                        let out = MatrixMut::rows_of(&mut scores, size);
                        matmul(q, k.transposed(), out, Product::Write, scale);
                        let out = MatrixMut::rows_of(&mut slopes, size);
                        matmul(d_o, v.transposed(), out, Product::Write, 1.0);
                        let factors = &mut factors[..if dropout.is_some() { size[0] * size[1] } else { 0 }];
                        if let Some(dropout) = dropout {
                            dropout.tile(from, others.start, size[1], factors);
                            slopes.iter_mut().zip(&*factors).for_each(|(slope, factor)| *slope *= factor);
                        }
                        let visible = |row| seen.within(row, &others);
                        gradient_tile::<T>(
                            &mut scores,
                            &mut slopes,
                            size,
                            visible,
                            logarithms,
                            &means,
                            scale,
                        );
                        if dropout.is_some() {
                            drop_tile::<T>(&mut scores, factors, size[1]);
                        }
                        let (p, d_s) = (rounded::<T>(&scores, size), rounded::<T>(&slopes, size));
                        let rows_of = |depth: usize| others.start * depth..others.end * depth;
                        let out = MatrixMut::rows_of(&mut d_v[rows_of(value_depth)], [size[1], value_depth]);
                        matmul(p.transposed(), d_o, out, Product::Add, 1.0);
                        let out = MatrixMut::rows_of(&mut d_q, [size[0], depth]);
                        matmul(d_s, k, out, Product::Add, 1.0);
                        let out = MatrixMut::rows_of(&mut d_k[rows_of(depth)], [size[1], depth]);
                        matmul(d_s.transposed(), q, out, Product::Add, 1.0);
                    }
                    for (row, query) in tile.clone().enumerate() {
                        let to = d_queries.vector([batch, head], query, depth);
                        convert(&d_q[row * depth..][..depth], to);
                    }
                }
            }
            if let Some(dropout) = dropout {
                multiply(&mut d_v, dropout.factor());
            }
            for key in 0..shape.keys {
                convert(&d_k[key * depth..][..depth], d_keys.vector([batch, key_head], key, depth));
                let to = d_values.vector([batch, key_head], key, value_depth);
                convert(&d_v[key * value_depth..][..value_depth], to);
            }
        }
    }
}
