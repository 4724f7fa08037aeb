//! Causal attention by blocks of queries and keys, of which those are left out that no query sees. Scores are in one buffer, whose other parts have any values.

use std::ops::Range;

use burn::tensor::Shape;
use burn_cubecl::cubecl::zspace::metadata::Metadata;
use burn_cubecl::tensor::CubeTensor;

use crate::cube::attention::softmax::{Keys, Part, softmax, softmax_backward};
use crate::cube::launch::{empty, transposed};
use crate::cube::linear::products::{Epilogue, Product, has_library, products_into};

/// Queries and keys of a block.
const BLOCK: usize = 256;

/// The positions of each block, if attention of `queries` to as many keys can be computed by blocks.
pub(crate) fn blocks(q: &CubeTensor, [queries, keys]: [usize; 2]) -> Option<Vec<Range<usize>>> {
    let alignment = q.client.properties().memory.alignment as usize;
    let depth = q.meta.shape().last().copied().unwrap_or(0);
    let is_aligned =
        [BLOCK, BLOCK * depth].iter().all(|offset| (offset * q.dtype.size()).is_multiple_of(alignment));
    let fits =
        has_library() && queries == keys && queries > BLOCK && queries.is_multiple_of(BLOCK) && is_aligned;
    fits.then(|| (0..queries).step_by(BLOCK).map(|start| start..start + BLOCK).collect())
}

/// The output and the probabilities, of contiguous `[batch, heads, positions, depth]`; none if no library writes products where they belong.
pub(crate) fn forward(
    [q, k, v]: [&CubeTensor; 3],
    blocks: &[Range<usize>],
    keys: &Keys,
    scale: f32,
) -> Option<[CubeTensor; 2]> {
    let shape = q.meta.shape().clone();
    let [batch, heads, positions] = [shape[0], shape[1], shape[2]];
    let scores = empty(q, [batch, heads, positions, positions], q.dtype);
    let output = empty(q, [batch, heads, positions, v.meta.shape()[3]], q.dtype);
    let seen = |scores: &CubeTensor, block: &Range<usize>| window(scores, block.clone(), 0..block.end);
    let made = blocks.iter().map(|block| Product {
        left: rows(q, block.clone()),
        right: transposed(rows(k, 0..block.end)),
        output: seen(&scores, block),
        epilogue: Epilogue::None,
    });
    products_into(&made.collect::<Vec<_>>())?;
    for block in blocks {
        softmax(&scores, keys, scale, Part { rows: block.clone(), width: block.end });
    }
    let made = blocks.iter().map(|block| Product {
        left: seen(&scores, block),
        right: rows(v, 0..block.end),
        output: rows(&output, block.clone()),
        epilogue: Epilogue::None,
    });
    products_into(&made.collect::<Vec<_>>())?;
    Some([output, scores])
}

/// The gradients of queries, keys and values.
pub(crate) fn backward(
    [q, k, v]: [&CubeTensor; 3],
    [probabilities, gradient]: [&CubeTensor; 2],
    blocks: &[Range<usize>],
    scale: f32,
) -> Option<[CubeTensor; 3]> {
    let of = |like: &CubeTensor| empty(like, like.meta.shape().clone(), like.dtype);
    let slopes = of(probabilities);
    let [d_q, d_k, d_v] = [q, k, v].map(of);
    let seen = |scores: &CubeTensor, block: &Range<usize>| window(scores, block.clone(), 0..block.end);
    let made = blocks.iter().map(|block| Product {
        left: rows(gradient, block.clone()),
        right: transposed(rows(v, 0..block.end)),
        output: seen(&slopes, block),
        epilogue: Epilogue::None,
    });
    products_into(&made.collect::<Vec<_>>())?;
    for block in blocks {
        softmax_backward(&slopes, probabilities, scale, Part { rows: block.clone(), width: block.end });
    }
    let end = q.meta.shape()[2];
    let made = blocks.iter().flat_map(|block| {
        let later = block.start..end;
        let seen_by = |scores: &CubeTensor| transposed(window(scores, later.clone(), block.clone()));
        let of = |left, right: &CubeTensor, from: &Range<usize>, output: &CubeTensor| Product {
            left,
            right: rows(right, from.clone()),
            output: rows(output, block.clone()),
            epilogue: Epilogue::None,
        };
        [
            of(seen(&slopes, block), k, &(0..block.end), &d_q),
            of(seen_by(probabilities), gradient, &later, &d_v),
            of(seen_by(&slopes), q, &later, &d_k),
        ]
    });
    products_into(&made.collect::<Vec<_>>())?;
    Some([d_q, d_k, d_v])
}

/// These rows of each matrix, where they lie.
fn rows(tensor: &CubeTensor, rows: Range<usize>) -> CubeTensor {
    let columns = tensor.meta.shape().last().copied().unwrap_or(1);
    window(tensor, rows, 0..columns)
}

/// These rows and columns of each matrix of a contiguous tensor, where they lie.
fn window(tensor: &CubeTensor, rows: Range<usize>, columns: Range<usize>) -> CubeTensor {
    let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
    let (rank, size) = (shape.num_dims(), tensor.dtype.size());
    let start = rows.start * strides[rank - 2] + columns.start * strides[rank - 1];
    let rest = (shape[rank - 2] - rows.end) * strides[rank - 2]
        + (shape[rank - 1] - columns.end) * strides[rank - 1];
    let handle = tensor.handle.clone().offset_start((start * size) as u64).offset_end((rest * size) as u64);
    let mut part: Vec<usize> = shape.iter().copied().collect();
    (part[rank - 2], part[rank - 1]) = (rows.len(), columns.len());
    let meta = Metadata::new(Shape::from(part), strides.clone());
    CubeTensor::new(tensor.client.clone(), handle, meta, tensor.device.clone(), tensor.dtype)
}
