//! Which operations are fused, and where.

use std::cell::Cell;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Tensor};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_flex::Flex;

use crate::graph::{Operation, primitive, run};

thread_local! {
    static IS_FUSED: Cell<bool> = const { Cell::new(true) };
}

/// Whether operations that this thread calls are fused where they can be, as they are at first, or all are Burn's own.
pub fn set_fused(fused: bool) {
    IS_FUSED.set(fused);
}

/// Runs an operation on fp32 tensors of Burn's CPU backend, in their graph if any of them is in one. None if a tensor is another one, or in a graph
/// that recomputes, which Burn's own operations have to be part of.
pub(crate) fn apply<const N: usize, O: Operation<N>>(
    operation: O,
    inputs: [&DispatchTensor; N],
) -> Option<(DispatchTensor, O::Extra)> {
    if !IS_FUSED.get() || inputs.iter().any(|tensor| tensor.dtype() != DType::F32) {
        return None;
    }
    run::<Flex, NoCheckpointing, N, O>(operation, inputs).ok()
}

/// Whether the operations of this crate are fused on this tensor: if it is in host memory, in fp32, in no graph that recomputes, and [`set_fused`] has not said no.
pub fn is_fused<const D: usize>(tensor: &Tensor<D>) -> bool {
    let tensor = tensor.clone().into_dispatch();
    let is_there = || {
        primitive::<Autodiff<Flex, NoCheckpointing>>(&tensor).is_some()
            || primitive::<Flex>(&tensor).is_some()
    };
    IS_FUSED.get() && tensor.dtype() == DType::F32 && is_there()
}
