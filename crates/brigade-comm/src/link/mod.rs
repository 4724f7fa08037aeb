//! Bytes between two ranks: one ordered, reliable stream in each direction, that never blocks.

pub(crate) mod channel;
pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod event_fd;
pub(crate) mod rings;
pub(crate) mod sealed;
pub(crate) mod segment;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod tcp;

#[cfg(test)]
mod tests;
