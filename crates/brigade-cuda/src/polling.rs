//! Polling with growing pauses and a deadline.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For this long it only yields to other threads: most waits are for a launch, which takes some ten microseconds.
const YIELD_FOR: Duration = Duration::from_micros(50);
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The pauses of one wait.
pub(crate) struct Backoff {
    start: Instant,
    timeout: Duration,
    sleep: Duration,
}

impl Backoff {
    /// A wait that started at `start` and may take `timeout`.
    pub(crate) fn new(start: Instant, timeout: Duration) -> Self {
        Self { start, timeout, sleep: SHORTEST_SLEEP }
    }

    /// A wait that its caller ends.
    pub(crate) fn unlimited() -> Self {
        Self::new(Instant::now(), Duration::MAX)
    }

    /// Pauses, each time for longer. Returns false, without a pause, once the deadline has passed.
    pub(crate) fn pause(&mut self) -> bool {
        let waited = self.start.elapsed();
        if waited >= self.timeout {
            return false;
        }
        if waited < YIELD_FOR {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep.min(self.timeout - waited));
            self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
        }
        true
    }
}

/// Locks a mutex. State behind the crate's locks is valid between any two statements, so a holder's panic does no harm.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
