//! Products for gradients of weights.

use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use burn::backend::DispatchTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, bf16};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_flex::{Flex, FlexTensor};

use super::buffer::Buffer;
use super::number::Number;
use super::view::{rows, values};
use crate::autodiff::deferred_products::WeightProduct;
use crate::autodiff::graph::{of_primitive, primitive};

/// The gradient of a weight as the product `leftᵀ · right` of two tensors of as many rows: the operation's input, and the gradient of the product with
/// the weight. The first is as wide as the weight has rows, the second as it has columns.
#[derive(Debug, Clone)]
pub(crate) struct HostProduct {
    pub left: FlexTensor,
    pub right: FlexTensor,
}

impl HostProduct {
    pub fn gradient(&self) -> FlexTensor {
        if self.left.dtype() == DType::BF16 { self.gradient_of::<bf16>() } else { self.gradient_of::<f32>() }
    }

    fn gradient_of<T: Number>(&self) -> FlexTensor {
        let [left, right] =
            [&self.left, &self.right].map(|part| Matrix::rows_of(values::<T>(part), rows(part)));
        let shape = [left.shape()[1], right.shape()[1]];
        let mut product = Buffer::<T>::new(shape[0] * shape[1]);
        matmul(left.transposed(), right, MatrixMut::rows_of(&mut product, shape), Product::Write, 1.0);
        product.into_tensor(shape)
    }
}

impl WeightProduct for HostProduct {
    fn compute(&self) -> DispatchTensor {
        of_primitive::<Flex>(self.gradient())
    }

    fn bytes(&self) -> usize {
        let bytes = |tensor: &FlexTensor| tensor.layout().num_elements() * tensor.dtype().size();
        bytes(&self.left) + bytes(&self.right)
    }

    fn reads(&self, tensor: &DispatchTensor) -> bool {
        let in_graph = || {
            let tensor = primitive::<Autodiff<Flex, NoCheckpointing>>(tensor)?;
            Some(FloatTensor::<Autodiff<Flex, NoCheckpointing>>::into_primitive(tensor))
        };
        let is_of = |part: &FlexTensor, tensor: &FlexTensor| part.bytes().as_ptr() == tensor.bytes().as_ptr();
        let read = primitive::<Flex>(tensor).or_else(in_graph);
        read.is_some_and(|tensor| is_of(&self.left, &tensor) || is_of(&self.right, &tensor))
    }
}
