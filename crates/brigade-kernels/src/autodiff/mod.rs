//! Steps of our own in Burn's autodiff graphs.

pub(crate) mod function;
pub(crate) mod graph;
pub(crate) mod later;
pub(crate) mod switch;
