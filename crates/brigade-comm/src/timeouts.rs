//! How long anything may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The deadlines of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call of [`join`](crate::join()) until all ranks have joined; also how long
    /// [`Group::split`](crate::Group::split) may take to connect. 300 s by default.
    pub init: Duration,
    /// For one operation, from the moment when it is the oldest unfinished one of its kind in its group. 100 s by default. While a
    /// rank [waits for longer work](crate::Group::use_init_timeout), `init` applies if it is longer.
    pub step: Duration,
    /// How long another host may be out of reach before its ranks count as lost. 30 s by default. TCP doubles its pauses
    /// between retries, so an outage of up to half that time is survived. A process that ends is noticed at once; one that is
    /// stopped is given the time of `step`.
    pub host: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { init: Duration::from_secs(300), step: Duration::from_secs(100), host: Duration::from_secs(30) }
    }
}

/// The deadline of one operation, which all groups of a rank share.
#[derive(Clone)]
pub(crate) struct OpTimeout {
    timeouts: Timeouts,
    uses_init: Arc<AtomicBool>,
}

impl OpTimeout {
    pub(crate) fn new(timeouts: Timeouts) -> Self {
        Self { timeouts, uses_init: Arc::default() }
    }

    pub(crate) fn set_uses_init(&self, uses_init: bool) {
        self.uses_init.store(uses_init, Relaxed);
    }

    /// The current deadline.
    pub(crate) fn now(&self) -> Duration {
        let Timeouts { init, step, .. } = self.timeouts;
        if self.uses_init.load(Relaxed) { init.max(step) } else { step }
    }
}
