//! Products for gradients of weights.

use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use burn::tensor::{DType, bf16};
use burn_flex::FlexTensor;

use super::buffer::Buffer;
use super::number::Number;
use super::view::{rows, values};

/// The gradient of a weight as the product `leftᵀ · right` of two tensors of as many rows: the operation's input, and the gradient of the product with
/// the weight. The first is as wide as the weight has rows, the second as it has columns.
#[derive(Debug, Clone)]
pub(crate) struct WeightProduct {
    pub left: FlexTensor,
    pub right: FlexTensor,
}

impl WeightProduct {
    pub fn compute(self) -> FlexTensor {
        if self.left.dtype() == DType::BF16 { self.compute_of::<bf16>() } else { self.compute_of::<f32>() }
    }

    fn compute_of<T: Number>(self) -> FlexTensor {
        let [left, right] =
            [&self.left, &self.right].map(|part| Matrix::rows_of(values::<T>(part), rows(part)));
        let shape = [left.shape()[1], right.shape()[1]];
        let mut product = Buffer::<T>::new(shape[0] * shape[1]);
        matmul(left.transposed(), right, MatrixMut::rows_of(&mut product, shape), Product::Write, 1.0);
        product.into_tensor(shape)
    }

    /// Bytes of what it is computed from.
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &FlexTensor| tensor.layout().num_elements() * tensor.dtype().size();
        bytes(&self.left) + bytes(&self.right)
    }

    /// Whether it is computed from the memory of this tensor.
    pub fn reads(&self, tensor: &FlexTensor) -> bool {
        [&self.left, &self.right].into_iter().any(|part| part.bytes().as_ptr() == tensor.bytes().as_ptr())
    }
}
