//! The watchdog's thread, and the state that it shares with its owners.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::entry::{Entry, WorkInfo};
use crate::error::Error;
use crate::nccl::CommHandle;
use crate::polling::lock;

/// How often the thread looks at the operations.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How often it asks whether another rank has failed.
const REMOTE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What the thread shares with its owners.
#[derive(Default)]
pub(super) struct Monitor {
    /// The first failure.
    pub(super) failure: OnceLock<Failure>,
    pub(super) entries: Mutex<Vec<Arc<Entry>>>,
    pub(super) communicators: Mutex<Vec<Weak<CommHandle>>>,
    /// Whether the thread is to end.
    stopped: AtomicBool,
    /// Guards nothing; needed to wake the thread early.
    sleep: Mutex<()>,
    wake: Condvar,
}

/// Why all communicators were aborted.
pub(super) struct Failure {
    pub(super) error: Error,
    /// Whether it was another rank that failed; then the others know already.
    is_remote: bool,
}

impl Monitor {
    /// Records the first failure, and wakes the thread.
    pub(super) fn fail(&self, error: Error, is_remote: bool) {
        let _ = self.failure.set(Failure { error, is_remote });
        self.wake.notify_all();
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(Error::Aborted { reason: failure.error.reason() }),
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.wake.notify_all();
    }

    /// What the thread does, until it is stopped or something fails.
    pub(super) fn run(&self, on_failure: impl Fn(&str), remote_failure: impl Fn() -> Option<String>) {
        let mut asked = Instant::now();
        loop {
            if let Some(failure) = self.failure.get() {
                return self.abort_all(failure, on_failure);
            }
            if self.stopped.load(SeqCst) {
                return;
            }
            self.poll();
            if asked.elapsed() >= REMOTE_CHECK_INTERVAL {
                asked = Instant::now();
                if let Some(reason) = remote_failure() {
                    self.fail(Error::Aborted { reason }, true);
                }
            }
            let sleep = lock(&self.sleep);
            if self.failure.get().is_none() && !self.stopped.load(SeqCst) {
                let _woken =
                    self.wake.wait_timeout(sleep, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Removes finished operations. The first one that is overdue or has failed becomes the failure.
    fn poll(&self) {
        for communicator in self.live_communicators() {
            if let Err(error) = communicator.check_async_error(&self.oldest(&communicator.group)) {
                return self.fail(error, false);
            }
        }
        // The driver is asked without the lock, so that nobody who starts an operation waits for it.
        let entries = lock(&self.entries).clone();
        let mut done = Vec::new();
        for entry in entries {
            let is_overdue =
                || if entry.work.done.is_done()? { Ok(None) } else { entry.is_overdue().map(Some) };
            match is_overdue() {
                Ok(None) => done.push(entry),
                Ok(Some(false)) => {}
                Ok(Some(true)) => return self.fail(entry.overdue(), false),
                Err(Error::Driver { call, name, code, text, .. }) => {
                    let WorkInfo { group, .. } = &entry.work.info;
                    let operation = format!("{} on group \"{group}\"", entry.work.info);
                    return self.fail(Error::Driver { call, name, code, text, operation }, false);
                }
                Err(error) => return self.fail(error, false),
            }
        }
        if !done.is_empty() {
            let flight_entries = done.iter().filter_map(|entry| entry.work.flight_entry.as_ref());
            flight_entries.for_each(|flight_entry| flight_entry.done(true));
            lock(&self.entries).retain(|entry| !done.iter().any(|other| Arc::ptr_eq(entry, other)));
        }
    }

    /// The operation of a group that has been running for longest, for messages.
    fn oldest(&self, group: &str) -> String {
        let entries = lock(&self.entries);
        let oldest = entries.iter().map(|entry| &entry.work.info).find(|info| info.group == group);
        oldest.map_or_else(|| "checking for asynchronous errors".to_owned(), WorkInfo::to_string)
    }

    fn live_communicators(&self) -> Vec<Arc<CommHandle>> {
        lock(&self.communicators).iter().filter_map(Weak::upgrade).collect()
    }

    /// Informs the other ranks first, since an abort may take a while. Communicators are aborted in parallel: the memory of
    /// one is freed only when no kernel of another is left waiting.
    fn abort_all(&self, failure: &Failure, on_failure: impl Fn(&str)) {
        let reason = failure.error.reason();
        tracing::error!("{reason}");
        let informed = catch_unwind(AssertUnwindSafe(|| {
            if !failure.is_remote {
                on_failure(&reason);
            }
        }));
        if informed.is_err() {
            tracing::warn!("informing the other ranks of a failure panicked");
        }
        let communicators = self.live_communicators();
        std::thread::scope(|scope| {
            for communicator in &communicators {
                let abort = || communicator.abort(&reason);
                let name = "brigade-abort".to_owned();
                if std::thread::Builder::new().name(name).spawn_scoped(scope, abort).is_err() {
                    abort();
                }
            }
        });
    }
}
