//! Waiting by looking again and again, with a deadline.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For so long it only lets other threads run: most waits are for a launch, which takes some ten
/// microseconds.
const BRIEFLY: Duration = Duration::from_micros(50);
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The pauses of one wait.
pub(crate) struct Patience {
    start: Instant,
    deadline: Duration,
    sleep: Duration,
}

impl Patience {
    /// A wait that began at `start` and may take `deadline`.
    pub(crate) fn new(start: Instant, deadline: Duration) -> Self {
        Self { start, deadline, sleep: SHORTEST_SLEEP }
    }

    /// A wait that whoever waits ends.
    pub(crate) fn unlimited() -> Self {
        Self::new(Instant::now(), Duration::MAX)
    }

    /// Pauses, each time longer; false, without a pause, when the time is over.
    pub(crate) fn pause(&mut self) -> bool {
        let waited = self.start.elapsed();
        if waited >= self.deadline {
            return false;
        }
        if waited < BRIEFLY {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep.min(self.deadline - waited));
            self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
        }
        true
    }
}

/// Locks. State behind these locks is valid between any two statements, so that a holder's panic does not
/// matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
