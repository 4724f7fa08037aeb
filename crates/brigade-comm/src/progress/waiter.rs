//! How a thread waits when nothing moves: briefly on its core, then without it.

use std::time::{Duration, Instant};

/// How long a waiting thread keeps its core, where there is one for every rank of the host. Short, because cores that
/// do other work as well may have put two ranks on one.
const SPIN: Duration = Duration::from_micros(2);

/// How long it then offers its core to others again and again before it sleeps. A core that nobody else wants comes
/// back within a microsecond.
const YIELD: Duration = Duration::from_micros(60);

/// What a thread that a caller waits for may do, and one in the background may not: it would take the core from
/// the computation.
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

/// One thread's waiting, from the last time that anything moved.
pub(crate) struct Waiter {
    mode: WaitMode,
    idle_since: Option<Instant>,
}

impl Waiter {
    pub(crate) fn new(mode: WaitMode) -> Self {
        Self { mode, idle_since: None }
    }

    /// Something moved.
    pub(crate) fn reset(&mut self) {
        self.idle_since = None;
    }

    /// Waits a little, or says that it is time to sleep.
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
