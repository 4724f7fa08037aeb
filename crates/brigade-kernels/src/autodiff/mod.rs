//! Steps of our own in Burn's autodiff graphs.

pub(crate) mod deferred_products;
pub(crate) mod function;
pub(crate) mod fusion;
pub(crate) mod graph;
