//! In which order sums are made.

use brigade_comm::{Call, DType, ReduceOp};

use crate::library::MpiDtype;

/// In which order sums over ranks are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Pairwise by rank, as everywhere in [`brigade_comm`]: MPI carries the numbers, and this crate adds them.
    #[default]
    Tree,
    /// As MPI's own reductions add, where MPI has the numbers: sums of f32 and f64. The last bits depend on the library, on its
    /// settings and on the number of ranks. All else is as in [`Tree`](Self::Tree).
    Engine,
}

impl Order {
    /// The numbers as which MPI itself reduces a call, if it does.
    pub(crate) fn number(self, call: &Call) -> Option<MpiDtype> {
        match (self, call.reduce, call.dtype) {
            (Self::Engine, Some(ReduceOp::Sum), DType::F32) => Some(MpiDtype::F32),
            (Self::Engine, Some(ReduceOp::Sum), DType::F64) => Some(MpiDtype::F64),
            _ => None,
        }
    }
}
