//! The operations that the watchdog watches.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use brigade_comm::flight::ExternalOp;

use crate::driver::Event;
use crate::error::Error;

/// What an operation is, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkInfo {
    /// Its name, as in `all_reduce`.
    pub name: &'static str,
    /// The group's name.
    pub group: String,
    /// Its number among the operations of the group.
    pub sequence: u64,
    /// The size of this rank's buffer, in bytes.
    pub bytes: usize,
}

impl fmt::Display for WorkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (number {}, {} bytes)", self.name, self.sequence, self.bytes)
    }
}

/// An operation that was enqueued.
pub struct WatchedWork {
    /// What it is.
    pub info: WorkInfo,
    /// Completes when the operation's input is ready, which is when its time starts. Without one, it starts at once.
    pub ready: Option<Arc<Event>>,
    /// Completes when the operation is done.
    pub done: Arc<Event>,
    /// The longest that it may take.
    pub timeout: Duration,
    /// Its entry in the flight recorder.
    pub flight_entry: Option<ExternalOp>,
}

/// A watched operation, with the times that its deadline is judged by.
pub(super) struct Entry {
    pub(super) work: WatchedWork,
    enqueued: Instant,
    /// When its input was first seen to be ready.
    ready: OnceLock<Instant>,
}

impl Entry {
    pub(super) fn new(work: WatchedWork) -> Self {
        Self { work, enqueued: Instant::now(), ready: OnceLock::new() }
    }

    /// Whether its deadline has passed.
    pub(super) fn is_overdue(&self) -> Result<bool, Error> {
        let since = match (&self.work.ready, self.ready.get()) {
            (None, _) => self.enqueued,
            (Some(_), Some(since)) => *since,
            (Some(ready), None) if ready.is_done()? => *self.ready.get_or_init(Instant::now),
            // The input is not being computed.
            (Some(_), None) => return Ok(self.enqueued.elapsed() >= self.work.timeout.saturating_mul(4)),
        };
        Ok(since.elapsed() >= self.work.timeout)
    }

    /// The error of an operation whose deadline has passed.
    pub(super) fn overdue(&self) -> Error {
        let WatchedWork { info, timeout, flight_entry, .. } = &self.work;
        if let Some(flight_entry) = flight_entry {
            flight_entry.overdue();
        }
        Error::Timeout { operation: info.to_string(), group: info.group.clone(), waited: *timeout }
    }
}
