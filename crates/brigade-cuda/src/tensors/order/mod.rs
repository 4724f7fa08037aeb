//! The order between Burn's streams and NCCL's.

pub(crate) mod burn_order;
pub(crate) mod burn_stream;
pub(crate) mod counter;
