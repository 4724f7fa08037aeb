//! Products for gradients of weights.

use burn_cubecl::tensor::CubeTensor;

use crate::cube::launch::transposed;
use crate::cube::linear::products::product;

/// The gradient of a weight as the product `leftᵀ · right` of two tensors of rows: the operation's input, and the gradient of the product with the weight.
#[derive(Debug, Clone)]
pub(crate) struct WeightProduct {
    pub left: CubeTensor,
    pub right: CubeTensor,
}

impl WeightProduct {
    pub fn factors(self) -> (CubeTensor, CubeTensor) {
        (transposed(self.left), self.right)
    }

    pub fn compute(self) -> CubeTensor {
        let dtype = self.right.dtype;
        let (left, right) = self.factors();
        product(left, right, dtype)
    }

    /// Bytes of what it is computed from.
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &CubeTensor| tensor.meta.shape().num_elements() * tensor.dtype.size();
        bytes(&self.left) + bytes(&self.right)
    }
}
