//! The first part of a step: a rank's micro-batches forward and backward, by a schedule.

pub(crate) mod check_blocks;
pub(crate) mod interpreter;
pub(crate) mod micro_batches;
pub(crate) mod non_finite;
pub(crate) mod recompute;
pub(crate) mod second_half;
pub(crate) mod tape;
mod tied_gradients;

/// What follows where blocks leave something for second halves here and nothing there, and each micro-batch's gradients are summed.
pub(crate) const SECOND_HALVES_DIFFER: &str = "their gradients cannot be summed over ranks in each micro-batch; set zero.reduce_every = \"step\", or a \
    schedule without halves (--schedule 1f1b)";
