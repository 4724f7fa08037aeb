//! The first part of a step: a rank's micro-batches forward and backward, by a schedule.

pub(crate) mod interpreter;
pub(crate) mod micro_batches;
pub(crate) mod non_finite;
pub(crate) mod recompute;
pub(crate) mod second_half;
pub(crate) mod tape;
mod tied_gradients;
