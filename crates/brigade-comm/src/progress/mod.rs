//! Progress: the operations of one group that are in flight on one rank, and the engine that drives them.

pub(crate) mod context;
mod failures;
mod in_flight;
pub(crate) mod operation;
pub(crate) mod progress_engine;
pub(crate) mod submissions;
mod submit;
mod waiter;
