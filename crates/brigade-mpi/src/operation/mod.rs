//! Operations of one rank: what they do, step by step.

pub(crate) mod collective;
mod scratch;
mod steps;
pub(crate) mod stop;
pub(crate) mod transfer;
