//! The forward pass.

use super::rows::{normalize, softmax_tile};
use super::{AttentionShape, HeadVectors, HeadVectorsMut, TILE, Visible, rounded, tiles};
use crate::{Factor, MatrixMut, Product, matmul};

/// `output ← softmax(scale · queries · keysᵀ) · values`, over the keys that each query sees. The output of a query that sees none is 0.
///
/// Scores and sums are in `f32`; the softmax's numerators are rounded to `T` for their product with values.
///
/// `logarithms`: [`AttentionShape::rows`] elements, where the logarithm of each softmax's denominator goes (minus infinity where no key is seen); the backward pass needs it.
///
/// # Panics
/// If a slice is too short for the shape.
pub fn attention<T: Factor>(
    shape: &AttentionShape,
    [queries, keys, values]: [HeadVectors<'_, T>; 3],
    visible: Visible<'_>,
    scale: f32,
    mut output: HeadVectorsMut<'_, T>,
    logarithms: &mut [f32],
) {
    shape.check();
    visible.check(shape);
    assert!(logarithms.len() == shape.rows(), "{} logarithms for {} rows", logarithms.len(), shape.rows());
    let mut scores = vec![0.0; TILE * TILE];
    let mut mixed = vec![0.0; TILE * shape.value_depth];
    for batch in 0..shape.batch {
        for tile in tiles(shape.queries) {
            let seen = visible.of_tile(shape, batch, tile.clone());
            for head in 0..shape.heads {
                let key_head = shape.key_head(head);
                let (mut highest, mut sums) = ([f32::NEG_INFINITY; TILE], [0.0; TILE]);
                mixed.fill(0.0);
                let q = queries.tile([batch, head], &tile, shape.depth);
                for others in seen.tiles() {
                    let k = keys.tile([batch, key_head], &others, shape.depth);
                    let v = values.tile([batch, key_head], &others, shape.value_depth);
                    let size = [tile.len(), others.len()];
                    matmul(q, k.transposed(), MatrixMut::rows_of(&mut scores, size), Product::Write, scale);
                    let visible = |row| seen.within(row, &others);
                    softmax_tile::<T>(&mut scores, size, visible, &mut mixed, &mut highest, &mut sums);
                    let mixed = MatrixMut::rows_of(&mut mixed, [tile.len(), shape.value_depth]);
                    matmul(rounded::<T>(&scores, size), v, mixed, Product::Add, 1.0);
                }
                let from = (batch * shape.heads + head) * shape.queries;
                for (row, query) in tile.clone().enumerate() {
                    let mixed = &mut mixed[row * shape.value_depth..][..shape.value_depth];
                    normalize(mixed, sums[row], output.vector([batch, head], query, shape.value_depth));
                    logarithms[from + query] = highest[row] + sums[row].ln();
                }
            }
        }
    }
}
