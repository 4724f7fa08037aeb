//! Steps with separately launched workers, and with parameter servers.

pub(crate) mod outer_step;
pub(crate) mod round;
pub(crate) mod separate;
pub(crate) mod shares;
