//! The forward pass.

use super::rows::{normalize, softmax_tile};
use super::{AttentionShape, HeadVectors, HeadVectorsMut, Probabilities, TILE, drop_tile, rounded, tiles};
use crate::{DropoutMask, Factor, MatrixMut, Product, matmul};

/// `output ← softmax(scale · queries · keysᵀ) · values`, over the keys that each query sees, with dropout of the softmax. The output of a query that sees none is 0.
///
/// Scores and sums are in `f32`; the softmax's numerators are rounded to `T` for their product with values.
///
/// `logarithms`: [`AttentionShape::rows`] elements, where the logarithm of each softmax's denominator goes (minus infinity where no key is seen); the backward pass needs it.
///
/// # Panics
/// If a slice is too short for the shape, or the probability of dropout is not between 0 and 1.
pub fn attention<T: Factor>(
    shape: &AttentionShape,
    [queries, keys, values]: [HeadVectors<'_, T>; 3],
    Probabilities { visible, scale, dropout }: Probabilities<'_>,
    mut output: HeadVectorsMut<'_, T>,
    logarithms: &mut [f32],
) {
    shape.check();
    visible.check(shape);
    assert!(logarithms.len() == shape.rows(), "{} logarithms for {} rows", logarithms.len(), shape.rows());
    let mut scores = vec![0.0; TILE * TILE];
    let mut factors = vec![0.0; if dropout.is_some() { TILE * TILE } else { 0 }];
    let kept = dropout.map_or(1.0, DropoutMask::factor);
    let mut mixed = vec![0.0; TILE * shape.value_depth];
    for batch in 0..shape.batch {
        for tile in tiles(shape.queries) {
            let seen = visible.of_tile(shape, batch, tile.clone());
            for head in 0..shape.heads {
                let key_head = shape.key_head(head);
                let (mut highest, mut sums) = ([f32::NEG_INFINITY; TILE], [0.0; TILE]);
                mixed.fill(0.0);
                let from = (batch * shape.heads + head) * shape.queries;
                let q = queries.tile([batch, head], &tile, shape.depth);
                for others in seen.tiles() {
                    let k = keys.tile([batch, key_head], &others, shape.depth);
                    let v = values.tile([batch, key_head], &others, shape.value_depth);
                    let size = [tile.len(), others.len()];
                    matmul(q, k.transposed(), MatrixMut::rows_of(&mut scores, size), Product::Write, scale);
                    let visible = |row| seen.within(row, &others);
                    softmax_tile::<T>(&mut scores, size, visible, &mut mixed, &mut highest, &mut sums);
                    if let Some(dropout) = dropout {
                        let factors = &mut factors[..size[0] * size[1]];
                        dropout.tile(from + tile.start, others.start, size[1], factors);
                        drop_tile::<T>(&mut scores, factors, size[1]);
                    }
                    let mixed = MatrixMut::rows_of(&mut mixed, [tile.len(), shape.value_depth]);
                    matmul(rounded::<T>(&scores, size), v, mixed, Product::Add, 1.0);
                }
                for (row, query) in tile.clone().enumerate() {
                    // The softmax of nothing but minus infinities is no number.
                    let sees = || seen.tiles().any(|others| !seen.within(row, &others).is_empty());
                    if sums[row] == 0.0 && sees() {
                        sums[row] = f32::NAN;
                    }
                    let mixed = &mut mixed[row * shape.value_depth..][..shape.value_depth];
                    normalize(mixed, sums[row], kept, output.vector([batch, head], query, shape.value_depth));
                    logarithms[from + query] = highest[row] + sums[row].ln();
                }
            }
        }
    }
}
