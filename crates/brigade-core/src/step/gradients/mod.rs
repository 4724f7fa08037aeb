//! What a step adds up: gradients of micro-batches, what hooks of a program make of them, and named sums.

pub(crate) mod accumulation;
pub(crate) mod hook;
pub(crate) mod metric_sums;
