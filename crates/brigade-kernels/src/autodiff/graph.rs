//! A step of our own in an autodiff graph of Burn's, on any of its backends.

use std::fmt::Debug;

use burn::backend::{Backend, BackendTensor, DispatchKindConversion, DispatchTensor};
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_autodiff::{Autodiff, NodeId};
use burn_flex::FlexTensor;

type AutodiffTensor<B, C> = burn::backend::tensor::FloatTensor<Autodiff<B, C>>;

/// A function of `N` float tensors of a backend.
pub(crate) trait Operation<const N: usize, T = FlexTensor>: Debug + Send + Sized + 'static {
    /// What the backward pass needs.
    type Saved: Clone + Debug + Send + 'static;

    /// Additional outputs, without a gradient.
    type Extra;

    /// The result, what its backward needs, and additional outputs.
    ///
    /// `wanted`: the inputs for which a backward pass may want a gradient; if none is, there is no such pass.
    fn forward(&self, inputs: [T; N], wanted: [bool; N]) -> (T, Option<Self::Saved>, Self::Extra);

    /// From the gradient of the result, those of the inputs for which one is `wanted`.
    fn backward(self, saved: Self::Saved, gradient: T, wanted: [bool; N]) -> [Option<T>; N];

    /// The same, where gradients may be [left](crate::autodiff::deferred_products::leave) for later. `leaves`: those of the inputs that are leaves of the graph.
    fn backward_or_leave(
        self,
        saved: Self::Saved,
        gradient: T,
        wanted: [bool; N],
        _leaves: [Option<NodeId>; N],
    ) -> [Option<T>; N] {
        self.backward(saved, gradient, wanted)
    }
}

/// Runs an operation on tensors of one backend, in their graph if any of them is in one. Gives it back if a tensor is on another backend, or
/// in a graph of another kind.
pub(crate) fn run<B, C, const N: usize, O>(
    operation: O,
    inputs: [&DispatchTensor; N],
) -> Result<(DispatchTensor, O::Extra), O>
where
    B: Backend,
    C: CheckpointStrategy,
    O: Operation<N, B::FloatTensorPrimitive>,
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, C>>,
{
    let plain = inputs.iter().filter_map(|tensor| primitive::<B>(tensor)).collect::<Vec<_>>();
    if let Ok(inputs) = <[_; N]>::try_from(plain) {
        let (output, _, extra) = operation.forward(inputs, [false; N]);
        return Ok((of_primitive::<B>(output), extra));
    }
    let tracked = |tensor: &DispatchTensor| {
        primitive::<Autodiff<B, C>>(tensor)
            .or_else(|| primitive::<B>(tensor).map(AutodiffTensor::<B, C>::new))
    };
    let tracked = inputs.into_iter().filter_map(tracked).collect::<Vec<_>>();
    let Ok(tracked) = <[_; N]>::try_from(tracked) else { return Err(operation) };
    let nodes = tracked.each_ref().map(AutodiffTensor::<B, C>::node);
    let wanted = tracked.each_ref().map(AutodiffTensor::<B, C>::is_tracked);
    let inputs = tracked.map(AutodiffTensor::<B, C>::into_primitive);
    let (output, saved, extra) = operation.forward(inputs, wanted);
    let step = Backward::<B, N>::prepare::<C>(Step(operation), nodes).compute_bound().stateful();
    let output = match (step, saved) {
        (OpsKind::Tracked(step), Some(saved)) => step.finish(saved, output),
        (OpsKind::UnTracked(step), _) => step.finish(output),
        (OpsKind::Tracked(_), None) => panic!("an operation in a graph keeps nothing for its backward pass"),
    };
    Ok((of_primitive::<Autodiff<B, C>>(output), extra))
}

/// A float tensor as the backend has it.
pub(crate) fn primitive<B: Backend>(tensor: &DispatchTensor) -> Option<B::FloatTensorPrimitive>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor.clone()) {
        Ok(BackendTensor::Float(tensor)) => Some(tensor),
        _ => None,
    }
}

/// A backend's float tensor as any backend's.
pub(crate) fn of_primitive<B: Backend>(tensor: B::FloatTensorPrimitive) -> DispatchTensor
where
    DispatchTensor: DispatchKindConversion<B>,
{
    <DispatchTensor as DispatchKindConversion<B>>::from_backend(BackendTensor::Float(tensor))
}

/// The operation as a step of a graph.
#[derive(Debug)]
struct Step<O>(O);

impl<B: Backend, const N: usize, O: Operation<N, B::FloatTensorPrimitive>> Backward<B, N> for Step<O> {
    type State = O::Saved;

    fn backward(self, ops: Ops<O::Saved, N>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let leaves = ops.parents.each_ref().map(|parent| {
            let parent = parent.as_ref()?;
            parent.parents.is_empty().then_some(parent.id)
        });
        let found = self.0.backward_or_leave(ops.state, gradient, wanted, leaves);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}
