//! Tables of vectors.

use burn::tensor::{Int, Tensor};

/// The rows of a table with these numbers: `weight`: `[rows, width]`, `indices`: `[batch, positions]`, the result: `[batch, positions, width]`.
///
/// On devices with kernels the table's gradient is one pass over the result's, in which the order of sums is that of `indices`; elsewhere, Burn's operations.
pub fn embedding(weight: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
    #[cfg(feature = "cube")]
    {
        let operation = crate::cube::Embedding { indices: indices.clone(), shape: weight.dims() };
        let tensor = weight.clone().into_dispatch();
        if crate::cube::Embedding::fits(&tensor)
            && let Some((output, ())) = crate::cube::apply(operation, [&tensor])
        {
            return Tensor::from_dispatch(output);
        }
    }
    burn::tensor::module::embedding(weight, indices)
}
