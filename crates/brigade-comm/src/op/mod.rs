//! Operations: their types, what ranks call, which bytes each rank sends to whom, and the arithmetic of reductions.
//! Nothing here communicates.

pub(crate) mod algorithm;
pub(crate) mod buffer;
pub(crate) mod call;
pub(crate) mod dtype;
pub(crate) mod header;
pub(crate) mod plan;
pub(crate) mod reduce;
pub(crate) mod stats;
pub(crate) mod view;
