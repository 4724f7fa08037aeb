//! Products for gradients of weights, which a backward pass may leave for later.

use std::cell::RefCell;

use burn::backend::DispatchTensor;
use burn_autodiff::NodeId;
use burn_flex::Flex;

use crate::autodiff::graph::of_primitive;
use crate::host;

thread_local! {
    static LEFT: RefCell<Option<Products>> = const { RefCell::new(None) };
}

/// In the order in which a backward pass comes to them, each for a leaf of the graph.
pub(crate) type Products = Vec<(NodeId, WeightProduct)>;

/// The product that is the gradient of a weight, not computed yet, on the device of its factors.
#[derive(Debug, Clone)]
pub(crate) enum WeightProduct {
    Host(host::WeightProduct),
    #[cfg(feature = "cube")]
    Cube(crate::cube::WeightProduct),
}

impl WeightProduct {
    pub fn compute(self) -> DispatchTensor {
        match self {
            Self::Host(product) => of_primitive::<Flex>(product.compute()),
            #[cfg(feature = "cube")]
            Self::Cube(product) => of_primitive::<burn::backend::Cube>(product.compute()),
        }
    }

    /// Bytes of what it is computed from.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Host(product) => product.bytes(),
            #[cfg(feature = "cube")]
            Self::Cube(product) => product.bytes(),
        }
    }
}

impl From<host::WeightProduct> for WeightProduct {
    fn from(product: host::WeightProduct) -> Self {
        Self::Host(product)
    }
}

#[cfg(feature = "cube")]
impl From<crate::cube::WeightProduct> for WeightProduct {
    fn from(product: crate::cube::WeightProduct) -> Self {
        Self::Cube(product)
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
pub(crate) fn leave<P: Into<WeightProduct>>(leaf: Option<NodeId>, product: P) -> Option<P> {
    LEFT.with_borrow_mut(|left| match (leaf, left) {
        (Some(leaf), Some(left)) => {
            left.push((leaf, product.into()));
            None
        }
        _ => Some(product),
    })
}
