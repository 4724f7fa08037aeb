//! Rounds of steps with parameter servers.

pub(crate) mod round;
pub(crate) mod separate;
pub(crate) mod shares;
