//! Products for gradients of weights, which a backward pass may leave for later.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn_autodiff::NodeId;

thread_local! {
    static LEFT: RefCell<Option<Products>> = const { RefCell::new(None) };
}

/// In the order in which a backward pass comes to them, each for a leaf of the graph.
pub(crate) type Products = Vec<(NodeId, Arc<dyn WeightProduct>)>;

/// The product that is the gradient of a weight, not computed yet, on the device of its factors.
pub(crate) trait WeightProduct: Debug + Send + Sync + 'static {
    fn compute(&self) -> DispatchTensor;

    /// Bytes of what it is computed from.
    fn bytes(&self) -> usize;

    /// Whether it is computed from the host memory of this tensor.
    fn reads(&self, tensor: &DispatchTensor) -> bool;
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
pub(crate) fn leave<P: WeightProduct>(leaf: Option<NodeId>, product: P) -> Option<P> {
    LEFT.with_borrow_mut(|left| match (leaf, left) {
        (Some(leaf), Some(left)) => {
            left.push((leaf, Arc::new(product)));
            None
        }
        _ => Some(product),
    })
}
