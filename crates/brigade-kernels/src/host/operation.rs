//! An operation with a backward pass of its own, in a graph of Burn's.

use std::cell::Cell;
use std::fmt::Debug;

use burn::backend::{BackendTensor, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Tensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_flex::{Flex, FlexTensor};

type Autodiff = burn_autodiff::Autodiff<Flex, NoCheckpointing>;
type AutodiffTensor = burn::backend::tensor::FloatTensor<Autodiff>;

thread_local! {
    static IS_FUSED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations that this thread calls are fused where they can be, as they are at first, or all are Burn's own.
pub fn set_fused(fused: bool) {
    IS_FUSED.set(fused);
}

/// A function of `N` tensors in host memory.
pub(crate) trait Operation<const N: usize>: Debug + Send + 'static {
    /// What the backward pass needs.
    type Saved: Clone + Debug + Send + 'static;

    /// What else comes out, without a gradient.
    type Extra;

    /// The result, what its backward needs, and what else comes out.
    ///
    /// `tracked`: whether there can be a backward pass.
    fn forward(
        &self,
        inputs: [FlexTensor; N],
        tracked: bool,
    ) -> (FlexTensor, Option<Self::Saved>, Self::Extra);

    /// From the gradient of the result, those of the inputs for which one is `wanted`.
    fn backward(self, saved: Self::Saved, gradient: FlexTensor, wanted: [bool; N])
    -> [Option<FlexTensor>; N];
}

/// Runs an operation on tensors of Burn's CPU backend, in their graph if any of them is in one. None if a tensor is on another backend, or in a graph
/// that recomputes, which Burn's own operations have to be part of.
pub(crate) fn apply<const N: usize, O: Operation<N>>(
    operation: O,
    inputs: [&DispatchTensor; N],
) -> Option<(DispatchTensor, O::Extra)> {
    if !IS_FUSED.get() {
        return None;
    }
    let mut plain = inputs.iter().filter_map(|tensor| of_backend::<Flex>(tensor));
    let plain: Option<[FlexTensor; N]> = plain.by_ref().collect::<Vec<_>>().try_into().ok();
    if let Some(inputs) = plain {
        let (output, _, extra) = operation.forward(inputs, false);
        let output =
            <DispatchTensor as DispatchKindConversion<Flex>>::from_backend(BackendTensor::Float(output));
        return Some((output, extra));
    }
    let tracked = |tensor: &DispatchTensor| {
        of_backend::<Autodiff>(tensor).or_else(|| of_backend::<Flex>(tensor).map(AutodiffTensor::new))
    };
    let tracked: Vec<AutodiffTensor> = inputs.into_iter().map(tracked).collect::<Option<_>>()?;
    let tracked: [AutodiffTensor; N] = tracked.try_into().ok()?;
    let nodes = tracked.each_ref().map(AutodiffTensor::node);
    let is_tracked = tracked.iter().any(AutodiffTensor::is_tracked);
    let (output, saved, extra) = operation.forward(tracked.map(AutodiffTensor::into_primitive), is_tracked);
    let output = match (Step(operation).prepare::<NoCheckpointing>(nodes).compute_bound().stateful(), saved) {
        (OpsKind::Tracked(step), Some(saved)) => step.finish(saved, output),
        (OpsKind::UnTracked(step), _) => step.finish(output),
        (OpsKind::Tracked(_), None) => panic!("an operation in a graph keeps nothing for its backward pass"),
    };
    let output =
        <DispatchTensor as DispatchKindConversion<Autodiff>>::from_backend(BackendTensor::Float(output));
    Some((output, extra))
}

/// Whether the operations of this crate are fused on this tensor: if it is in host memory, in fp32, in no graph that recomputes, and [`set_fused`] has not said no.
pub fn is_fused<const D: usize>(tensor: &Tensor<D>) -> bool {
    let tensor = tensor.clone().into_dispatch();
    IS_FUSED.get() && (of_backend::<Autodiff>(&tensor).is_some() || of_backend::<Flex>(&tensor).is_some())
}

fn of_backend<B: burn::backend::Backend>(tensor: &DispatchTensor) -> Option<B::FloatTensorPrimitive>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor.clone()) {
        Ok(BackendTensor::Float(tensor)) if tensor.dtype() == DType::F32 => Some(tensor),
        _ => None,
    }
}

/// The operation as a step of a graph.
#[derive(Debug)]
struct Step<O>(O);

impl<const N: usize, O: Operation<N>> Backward<Flex, N> for Step<O> {
    type State = O::Saved;

    fn backward(self, ops: Ops<O::Saved, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let found = self.0.backward(ops.state, gradient, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
