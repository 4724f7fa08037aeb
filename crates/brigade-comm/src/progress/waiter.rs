//! How a thread waits when there is no progress: it spins and yields briefly, then it sleeps.

use std::time::{Duration, Instant};

/// How long a waiting thread spins, if there is a core for every rank of the host. Short, because the system may still have put
/// two ranks on one core.
const SPIN: Duration = Duration::from_micros(2);

/// How long it then yields its core again and again before it sleeps. A core that nobody else needs comes back within a
/// microsecond.
const YIELD: Duration = Duration::from_micros(60);

/// How a thread may wait. A caller may spin; a thread in the background may not, because it would take the core from the
/// computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitMode {
    /// Spin, yield, sleep.
    Caller {
        /// Whether every rank of this host has a core.
        spin: bool,
    },
    /// Sleep at once.
    Background,
}

/// One thread's wait since the last progress.
pub(crate) struct Waiter {
    mode: WaitMode,
    idle_since: Option<Instant>,
}

impl Waiter {
    pub(crate) fn new(mode: WaitMode) -> Self {
        Self { mode, idle_since: None }
    }

    /// There was progress.
    pub(crate) fn reset(&mut self) {
        self.idle_since = None;
    }

    /// Waits a little, or returns true if it is time to sleep.
    pub(crate) fn should_sleep(&mut self) -> bool {
        let WaitMode::Caller { spin } = self.mode else { return true };
        let now = Instant::now();
        let idle = now - *self.idle_since.get_or_insert(now);
        let spin = if spin { SPIN } else { Duration::ZERO };
        if idle < spin {
            (0..16).for_each(|_| std::hint::spin_loop());
        } else if idle < spin + YIELD {
            std::thread::yield_now();
        } else {
            return true;
        }
        false
    }
}
