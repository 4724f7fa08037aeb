//! Which operations are fused, and where.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, bf16};
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::{Autodiff, NodeId};
use burn_flex::{Flex, FlexTensor};

use super::number::Number;
use crate::autodiff::fusion::is_fusion_enabled;
use crate::autodiff::graph::{Operation, primitive, run};

/// An [`Operation`] on host memory, for each type of numbers that all its inputs may have.
pub(crate) trait FusedOperation<const N: usize>: Debug + Send + Sized + 'static {
    /// See [`Operation::Saved`].
    type Saved: Clone + Debug + Send + 'static;

    /// See [`Operation::Extra`].
    type Extra;

    /// See [`Operation::forward`].
    fn forward<T: Number>(
        &self,
        inputs: [FlexTensor; N],
        wanted: [bool; N],
    ) -> (FlexTensor, Option<Self::Saved>, Self::Extra);

    /// See [`Operation::backward`].
    fn backward<T: Number>(
        self,
        saved: Self::Saved,
        gradient: FlexTensor,
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N];

    /// See [`Operation::backward_or_leave`].
    fn backward_or_leave<T: Number>(
        self,
        saved: Self::Saved,
        gradient: FlexTensor,
        wanted: [bool; N],
        _leaves: [Option<NodeId>; N],
    ) -> [Option<FlexTensor>; N] {
        self.backward::<T>(saved, gradient, wanted)
    }
}

/// An operation on tensors of `T`.
#[derive(Debug)]
struct Of<T, O>(O, PhantomData<T>);

impl<const N: usize, T: Number, O: FusedOperation<N>> Operation<N> for Of<T, O> {
    type Saved = O::Saved;
    type Extra = O::Extra;

    fn forward(
        &self,
        inputs: [FlexTensor; N],
        wanted: [bool; N],
    ) -> (FlexTensor, Option<O::Saved>, O::Extra) {
        self.0.forward::<T>(inputs, wanted)
    }

    fn backward(self, saved: O::Saved, gradient: FlexTensor, wanted: [bool; N]) -> [Option<FlexTensor>; N] {
        self.0.backward::<T>(saved, gradient, wanted)
    }

    fn backward_or_leave(
        self,
        saved: O::Saved,
        gradient: FlexTensor,
        wanted: [bool; N],
        leaves: [Option<NodeId>; N],
    ) -> [Option<FlexTensor>; N] {
        self.0.backward_or_leave::<T>(saved, gradient, wanted, leaves)
    }
}

/// Runs an operation on tensors of Burn's CPU backend, all in fp32 or all in bf16, in their graph if any of them is in one. None if a tensor is another one, or in a graph
/// that recomputes, which Burn's own operations have to be part of.
pub(crate) fn apply<const N: usize, O: FusedOperation<N>>(
    operation: O,
    inputs: [&DispatchTensor; N],
) -> Option<(DispatchTensor, O::Extra)> {
    fn of<const N: usize, T: Number, O: FusedOperation<N>>(
        operation: O,
        inputs: [&DispatchTensor; N],
    ) -> Option<(DispatchTensor, O::Extra)> {
        run::<Flex, NoCheckpointing, N, _>(Of(operation, PhantomData::<T>), inputs).ok()
    }
    let is_all = |dtype: DType| inputs.iter().all(|tensor| tensor.dtype() == dtype);
    match is_fusion_enabled() {
        true if is_all(DType::F32) => of::<N, f32, O>(operation, inputs),
        true if is_all(DType::BF16) => of::<N, bf16, O>(operation, inputs),
        _ => None,
    }
}

/// [`is_fused_on_cpu`](crate::is_fused_on_cpu).
pub(crate) fn is_on_host(tensor: &DispatchTensor) -> bool {
    let is_there = || {
        primitive::<Autodiff<Flex, NoCheckpointing>>(tensor).is_some() || primitive::<Flex>(tensor).is_some()
    };
    is_fusion_enabled() && matches!(tensor.dtype(), DType::F32 | DType::BF16) && is_there()
}
