//! Steps with workers that are launches of their own, and with parameter servers.

pub(crate) mod outer_step;
pub(crate) mod round;
pub(crate) mod separate;
pub(crate) mod shares;
