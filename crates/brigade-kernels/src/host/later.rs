//! Products for gradients of weights, which a backward pass may leave for later.

use std::cell::RefCell;

use brigade_simd::{Matrix, MatrixMut, Product, matmul};
use burn::tensor::{DType, bf16};
use burn_autodiff::NodeId;
use burn_flex::FlexTensor;

use super::buffer::Buffer;
use super::number::Number;
use super::view::{matrix, rows, values};

thread_local! {
    static LEFT: RefCell<Option<Products>> = const { RefCell::new(None) };
}

/// In the order in which a backward pass comes to them, each for a leaf of the graph.
pub(crate) type Products = Vec<(NodeId, WeightProduct)>;

/// The gradient of a weight as the product `xᵀ · slope`.
#[derive(Debug, Clone)]
pub(crate) struct WeightProduct {
    /// The operation's input, as rows.
    pub x: FlexTensor,
    /// The gradient of the product with the weight, `[rows, outputs]`.
    pub slope: FlexTensor,
}

impl WeightProduct {
    pub fn compute(self) -> FlexTensor {
        if self.x.dtype() == DType::BF16 { self.compute_of::<bf16>() } else { self.compute_of::<f32>() }
    }

    fn compute_of<T: Number>(self) -> FlexTensor {
        let ([_, inputs], [count, outputs]) = (rows(&self.x), rows(&self.slope));
        let slope = Matrix::rows_of(values::<T>(&self.slope), [count, outputs]);
        let mut product = Buffer::<T>::new(inputs * outputs);
        let out = MatrixMut::rows_of(&mut product, [inputs, outputs]);
        matmul(matrix(&self.x).transposed(), slope, out, Product::Write, 1.0);
        product.into_tensor([inputs, outputs])
    }

    /// Bytes of what it is computed from.
    pub fn bytes(&self) -> usize {
        let bytes = |tensor: &FlexTensor| tensor.layout().num_elements() * tensor.dtype().size();
        bytes(&self.x) + bytes(&self.slope)
    }

    /// Whether it is computed from the memory of this tensor.
    pub fn reads(&self, tensor: &FlexTensor) -> bool {
        [&self.x, &self.slope].into_iter().any(|part| part.bytes().as_ptr() == tensor.bytes().as_ptr())
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
