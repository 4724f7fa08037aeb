//! The backward pass: scores are computed again, tile by tile.

use super::rows::{dot, gradient_tile};
use super::{AttentionShape, HeadVectors, HeadVectorsMut, TILE, Visible, tiles};
use crate::{Matrix, MatrixMut, Product, matmul};

/// Gradients of queries, keys and values, from that of the output; they replace what was there.
///
/// With `P = exp(scale · Q · Kᵀ - logarithms)`: `dV = Pᵀ · dO`, `dS = P ∘ (dO · Vᵀ - Σ dO ∘ O) · scale`, `dQ = dS · K` and `dK = dSᵀ · Q`
/// (Dao et al., appendix B.2). `output` and `logarithms` are those of the forward pass.
///
/// # Panics
/// If a slice is too short for the shape.
#[allow(clippy::too_many_arguments)]
pub fn attention_backward(
    shape: &AttentionShape,
    [queries, keys, values]: [HeadVectors<'_>; 3],
    visible: Visible<'_>,
    scale: f32,
    output: HeadVectors<'_>,
    logarithms: &[f32],
    gradient: HeadVectors<'_>,
    [mut d_queries, mut d_keys, mut d_values]: [HeadVectorsMut<'_>; 3],
) {
    shape.check();
    visible.check(shape);
    let (depth, value_depth) = (shape.depth, shape.value_depth);
    let mut scores = vec![0.0; TILE * TILE];
    let mut slopes = vec![0.0; TILE * TILE];
    for batch in 0..shape.batch {
        for head in 0..shape.heads {
            for query in 0..shape.queries {
                d_queries.vector([batch, head], query, depth).fill(0.0);
            }
        }
        for head in 0..shape.key_heads {
            for key in 0..shape.keys {
                d_keys.vector([batch, head], key, depth).fill(0.0);
                d_values.vector([batch, head], key, value_depth).fill(0.0);
            }
        }
        for tile in tiles(shape.queries) {
            let seen = visible.of_tile(shape, batch, tile.clone());
            for head in 0..shape.heads {
                let key_head = shape.key_head(head);
                let q = queries.tile([batch, head], &tile, depth);
                let d_o = gradient.tile([batch, head], &tile, value_depth);
                let logarithms =
                    &logarithms[(batch * shape.heads + head) * shape.queries + tile.start..][..tile.len()];
                let mut means = [0.0; TILE];
                for (mean, query) in means.iter_mut().zip(tile.clone()) {
                    let d_o = gradient.vector([batch, head], query, value_depth);
                    *mean = dot(d_o, output.vector([batch, head], query, value_depth));
                }
                for others in seen.tiles() {
                    let k = keys.tile([batch, key_head], &others, depth);
                    let v = values.tile([batch, key_head], &others, value_depth);
                    let size = [tile.len(), others.len()];
                    matmul(q, k.transposed(), MatrixMut::rows_of(&mut scores, size), Product::Write, scale);
                    matmul(d_o, v.transposed(), MatrixMut::rows_of(&mut slopes, size), Product::Write, 1.0);
                    let visible = |row| seen.within(row, &others);
                    gradient_tile(&mut scores, &mut slopes, size, visible, logarithms, &means, scale);
                    let (p, d_s) = (Matrix::rows_of(&scores, size), Matrix::rows_of(&slopes, size));
                    let d_v = d_values.tile([batch, key_head], &others, value_depth);
                    matmul(p.transposed(), d_o, d_v, Product::Add, 1.0);
                    let d_q = d_queries.tile([batch, head], &tile, depth);
                    matmul(d_s, k, d_q, Product::Add, 1.0);
                    let d_k = d_keys.tile([batch, key_head], &others, depth);
                    matmul(d_s.transposed(), q, d_k, Product::Add, 1.0);
                }
            }
        }
    }
}
