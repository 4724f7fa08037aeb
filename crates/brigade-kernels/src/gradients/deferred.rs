//! Gradients of weights that are computed later than those of inputs.

use std::sync::Arc;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::Tensor;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::{Autodiff, NodeId};
use burn_flex::Flex;

use crate::autodiff::deferred_products::{Products, WeightProduct, leaving};
use crate::autodiff::graph::primitive;

type InGraph<B> = Autodiff<B, NoCheckpointing>;

/// Runs a backward pass in which [`linear`](crate::linear()) operations leave the products for the gradients of their weights for later, where the
/// weight is a parameter, which is a leaf of the graph. All other gradients are computed as always.
///
/// Where a parameter is the weight of several linear operations, the sum of their products has the bits that it has at once. Where other operations
/// give a part of its gradient as well, the order of the sum may be another.
///
/// ```
/// use brigade_kernels::{deferring, linear};
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::ones([2, 3], &device).require_grad();
/// let weight = Tensor::<2>::ones([3, 4], &device).require_grad();
/// let loss = linear(x.clone(), weight.clone(), None).sum();
///
/// let (gradients, mut deferred) = deferring(|| loss.backward());
/// assert!(x.grad(&gradients).is_some() && weight.grad(&gradients).is_none());
/// let gradient = deferred.take(&weight).unwrap().compute();
/// assert_eq!(gradient.dims(), [3, 4]);
/// ```
pub fn deferring<T>(backward: impl FnOnce() -> T) -> (T, DeferredGradients) {
    let (found, left) = leaving(backward);
    (found, DeferredGradients(left))
}

/// What a backward pass has left for later.
#[derive(Debug, Default)]
pub struct DeferredGradients(Products);

impl DeferredGradients {
    /// What is left of a parameter's gradient. It is to be added to what the backward pass has found.
    pub fn take<const D: usize>(&mut self, parameter: &Tensor<D>) -> Option<DeferredGradient> {
        let id = node(parameter)?;
        let products = self.0.extract_if(.., |(leaf, _)| *leaf == id);
        let parts: Vec<_> = products.map(|(_, product)| Part::Product(product)).collect();
        (!parts.is_empty()).then_some(DeferredGradient(parts))
    }
}

/// The gradient of a weight, not computed yet: the sum of the products that linear operations have left.
#[derive(Debug, Clone)]
pub struct DeferredGradient(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    Product(Arc<dyn WeightProduct>),
    Computed(Box<DispatchTensor>),
}

impl Part {
    fn compute(self) -> DispatchTensor {
        match self {
            Self::Product(product) => product.compute(),
            Self::Computed(gradient) => *gradient,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Product(product) => product.bytes(),
            Self::Computed(gradient) => gradient.shape().num_elements() * gradient.dtype().size(),
        }
    }
}

impl DeferredGradient {
    /// Computes at once the products that would read the host memory of this tensor, which will have other values by then.
    pub fn read_now<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let tensor = tensor.clone().into_dispatch();
        for part in &mut self.0 {
            if let Part::Product(product) = part
                && product.reads(&tensor)
            {
                *part = Part::Computed(Box::new(product.compute()));
            }
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|part| part.bytes() as u64).sum()
    }

    /// The gradient, of the weight's shape, in no graph.
    pub fn compute(self) -> Tensor<2> {
        let parts = self.0.into_iter().map(|part| Tensor::from_dispatch(part.compute()));
        parts.reduce(|sum, part: Tensor<2>| sum + part).unwrap_or_else(|| unreachable!("it has a product"))
    }
}

/// The tensor's node in its graph.
fn node<const D: usize>(tensor: &Tensor<D>) -> Option<NodeId> {
    let tensor = tensor.clone().into_dispatch();
    let on_host = primitive::<InGraph<Flex>>(&tensor).map(|tensor| tensor.id());
    #[cfg(feature = "cube")]
    let on_host =
        on_host.or_else(|| primitive::<InGraph<burn::backend::Cube>>(&tensor).map(|tensor| tensor.id()));
    on_host
}
