//! Bytes between two ranks: one ordered, reliable stream in each direction, that never blocks.

pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod role;
pub(crate) mod shared;
pub(crate) mod tcp;

#[cfg(test)]
mod tests;
