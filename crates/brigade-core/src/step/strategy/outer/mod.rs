//! Outer steps of workers that make updates of their own.

pub(crate) mod fragments;
pub(crate) mod local_updates;
pub(crate) mod outer_optimizer;
pub(crate) mod outer_sum;
