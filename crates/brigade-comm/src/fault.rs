//! The first failure of a world, as one rank sees it.

use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::link::shared::event_fd::EventFd;
use crate::sync::{lock, wait_until};

/// How long to wait for the control plane to say why a link broke.
const EXPLANATION: Duration = Duration::from_millis(500);

/// A failure and the world rank where it happened.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) origin: usize,
    pub(crate) error: Error,
}

/// Holds the first failure and, when there is one, wakes everything that waits. Shared by all ranks of a world of
/// threads, one per process otherwise.
#[derive(Default)]
pub(crate) struct Fault {
    first: OnceLock<Failure>,
    gate: Mutex<Vec<Weak<EventFd>>>,
    raised: Condvar,
}

impl Fault {
    /// Registers an event fd that is notified of a failure.
    pub(crate) fn watch(&self, event_fd: &Arc<EventFd>) {
        let mut event_fds = lock(&self.gate);
        event_fds.retain(|old| old.strong_count() > 0);
        event_fds.push(Arc::downgrade(event_fd));
        if self.first.get().is_some() {
            event_fd.notify();
        }
    }

    /// Raises a failure; only the first one counts.
    pub(crate) fn raise(&self, origin: usize, error: Error) {
        let event_fds = lock(&self.gate);
        if self.first.set(Failure { origin, error }).is_ok() {
            self.raised.notify_all();
            event_fds.iter().filter_map(Weak::upgrade).for_each(|event_fd| event_fd.notify());
        }
    }

    /// Whether there is a failure. Waits a moment for one: a link may have broken because of a failure that has not
    /// reached this rank yet.
    pub(crate) fn is_explained(&self) -> bool {
        let deadline = Instant::now() + EXPLANATION;
        let mut guard = lock(&self.gate);
        let mut in_time = true;
        while self.first.get().is_none() && in_time {
            (guard, in_time) = wait_until(&self.raised, guard, deadline);
        }
        self.first.get().is_some()
    }

    /// Wakes everything that waits.
    pub(crate) fn wake_all(&self) {
        lock(&self.gate).iter().filter_map(Weak::upgrade).for_each(|event_fd| event_fd.notify());
    }

    /// The first failure.
    pub(crate) fn get(&self) -> Option<&Failure> {
        self.first.get()
    }

    /// The first failure as `rank` reports it: as its own error, or as a peer's.
    pub(crate) fn error_for(&self, rank: usize) -> Option<Error> {
        self.first.get().map(|Failure { origin, error }| match *origin == rank {
            true => error.clone(),
            false => error.for_others(*origin),
        })
    }

    /// Fails when there is a failure.
    pub(crate) fn check(&self, rank: usize) -> Result<(), Error> {
        self.error_for(rank).map_or(Ok(()), Err)
    }
}
