//! Gradients that are left for later, and those that are known before a backward pass.

pub(crate) mod deferred;
pub(crate) mod injected;
