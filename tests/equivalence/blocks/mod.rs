//! Blocks that draw random numbers, or that change more than their parameters.

pub(crate) mod burn_layers;
pub(crate) mod context;
pub(crate) mod dropout;
pub(crate) mod running_state;
pub(crate) mod sync_batch_norm;
