//! Products for gradients of weights.

use burn::backend::{Cube, DispatchTensor};
use burn_cubecl::tensor::CubeTensor;

use crate::autodiff::deferred_products::WeightProduct;
use crate::autodiff::graph::of_primitive;
use crate::cube::launch::transposed;
use crate::cube::linear::products::product;

/// The gradient of a weight as the product `leftᵀ · right` of two tensors of rows: the operation's input, and the gradient of the product with the weight.
#[derive(Debug, Clone)]
pub(crate) struct CubeProduct {
    pub left: CubeTensor,
    pub right: CubeTensor,
}

impl CubeProduct {
    pub fn factors(&self) -> (CubeTensor, CubeTensor) {
        (transposed(self.left.clone()), self.right.clone())
    }
}

impl WeightProduct for CubeProduct {
    fn compute(&self) -> DispatchTensor {
        let (left, right) = self.factors();
        of_primitive::<Cube>(product(left, right, self.right.dtype))
    }

    fn bytes(&self) -> usize {
        let bytes = |tensor: &CubeTensor| tensor.meta.shape().num_elements() * tensor.dtype.size();
        bytes(&self.left) + bytes(&self.right)
    }

    fn reads(&self, _: &DispatchTensor) -> bool {
        false
    }
}
