//! A forward whose backward can be done in two halves.

use brigade_sorted::SortedMap;
use burn::tensor::Tensor;

use crate::model::activation::Parts;

/// What [`Block::forward_split`](crate::Block::forward_split) gives: the output and, where the block offers it, how the gradients of
/// its parameters are computed later (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"; PyTorch's `stage_backward_input` and
/// `stage_backward_weight`).
pub struct SplitForward<O> {
    pub(crate) output: O,
    pub(crate) backward_weights: Option<BackwardWeights<O, ParameterGradients>>,
}

/// From the gradient of the output to the gradients of the parameters.
pub(crate) type BackwardWeights<G, P> = Box<dyn FnOnce(G) -> P + Send>;

/// The same for an output whose type is erased; none if the parts are not those of the output.
pub(crate) type ErasedBackwardWeights = BackwardWeights<Parts, Option<ParameterGradients>>;

impl<O> SplitForward<O> {
    /// An output whose graph leads to the input, and what computes the gradients of the parameters that are left out of this graph.
    ///
    /// `backward_weights` is called once, after the backward through the graph, with the gradient of the output: of each
    /// float tensor its gradient, without autodiff, or zeros where none flows, and integers as they were. It is not called where no
    /// gradient flows at all. It may ignore the gradient if the graph's operations left it what it needs in their backward. What
    /// it keeps should be without a graph ([`Tensor::inner`]).
    ///
    /// It must not read parameters, because ZeRO-3 may have freed them and written to their memory again. The product for the
    /// gradient of a weight needs input and output gradient alone.
    pub fn new(output: O, backward_weights: impl FnOnce(O) -> ParameterGradients + Send + 'static) -> Self {
        Self { output, backward_weights: Some(Box::new(backward_weights)) }
    }
}

impl<O> From<O> for SplitForward<O> {
    /// An output whose graph leads to the input and to all parameters: its backward is done at once.
    fn from(output: O) -> Self {
        Self { output, backward_weights: None }
    }
}

/// Gradients of a block's parameters.
///
/// A parameter without one gets zeros; the gradient of a frozen parameter is dropped.
#[derive(Default)]
pub struct ParameterGradients(pub(crate) SortedMap<String, ParameterGradient>);

/// Flattened, and its shape.
pub(crate) type ParameterGradient = (Tensor<1>, Vec<usize>);

impl ParameterGradients {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the gradient of the parameter of this path in the block, such as `linear.weight`; it has the parameter's shape. A second
    /// one of the same path is added to the first.
    pub fn with<const D: usize>(mut self, path: impl Into<String>, gradient: Tensor<D>) -> Self {
        let (path, shape) = (path.into(), gradient.dims().to_vec());
        let flat = gradient.inner().reshape([shape.iter().product::<usize>()]);
        let sum = match self.0.remove(&path) {
            Some((before, _)) => before + flat,
            None => flat,
        };
        self.0.insert(path, (sum, shape));
        self
    }
}
