//! How long anything may take.

use std::time::Duration;

/// The deadlines of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call of [`join`](crate::join) until all ranks are there; also the time that
    /// [`Group::split`](crate::Group::split) may take to connect. 300 s by default.
    pub init: Duration,
    /// For one operation, from the moment it is the oldest unfinished one of its kind in its group. 100 s by default.
    pub step: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { init: Duration::from_secs(300), step: Duration::from_secs(100) }
    }
}
