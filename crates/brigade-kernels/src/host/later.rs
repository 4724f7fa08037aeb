//! Products for gradients of weights, which a backward pass may leave for later.

use std::cell::RefCell;

use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use burn::tensor::{DType, bf16};
use burn_autodiff::NodeId;
use burn_flex::FlexTensor;

use super::buffer::Buffer;
use super::number::Number;
use super::view::{rows, values};

thread_local! {
    static LEFT: RefCell<Option<Products>> = const { RefCell::new(None) };
}

/// In the order in which a backward pass comes to them, each for a leaf of the graph.
pub(crate) type Products = Vec<(NodeId, WeightProduct)>;

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

/// Runs a backward pass on this thread that leaves the products for gradients of leaves.
pub(crate) fn leaving<T>(backward: impl FnOnce() -> T) -> (T, Products) {
    struct Restore(Option<Products>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LEFT.set(self.0.take());
        }
    }
    let restore = Restore(LEFT.replace(Some(Vec::new())));
    let found = backward();
    let left = LEFT.take().unwrap_or_default();
    drop(restore);
    (found, left)
}

/// Leaves the product for a leaf for later. Gives it back if it is for no leaf, or none is to be left.
pub(crate) fn leave(leaf: Option<NodeId>, product: WeightProduct) -> Option<WeightProduct> {
    LEFT.with_borrow_mut(|left| match (leaf, left) {
        (Some(leaf), Some(left)) => {
            left.push((leaf, product));
            None
        }
        _ => Some(product),
    })
}
