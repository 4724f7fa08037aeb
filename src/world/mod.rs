//! The world of ranks: how a rank joins it, and what all must agree on.

mod agreement;
mod join;

pub(crate) use agreement::{same, same_configuration, texts};
pub(crate) use join::{join, timeouts};
