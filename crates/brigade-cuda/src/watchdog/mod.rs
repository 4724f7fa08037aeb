//! The watchdog of a rank: a thread that watches what its GPU runs together with other ranks, as the watchdog of PyTorch's
//! `ProcessGroupNCCL` does.
//!
//! A kernel of NCCL waits for other ranks on the GPU, where nothing can time out. So every operation is handed to the watchdog
//! together with an event that completes after it. The first failure, on this rank or another, aborts all communicators.

mod entry;
mod monitor;

pub use entry::{WatchedWork, WorkInfo};

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::error::Error;
use crate::nccl::Communicator;
use crate::polling::{Backoff, lock};
use entry::Entry;
use monitor::Monitor;

/// Watches the operations and communicators of one rank, until it is dropped.
pub struct Watchdog {
    monitor: Arc<Monitor>,
    thread: Option<JoinHandle<()>>,
}

/// An operation that the watchdog watches.
pub struct WorkHandle {
    monitor: Arc<Monitor>,
    entry: Arc<Entry>,
}

impl Watchdog {
    /// Starts the thread. It calls `on_failure` once, with the first failure of this rank; that should inform the other ranks.
    /// It calls `remote_failure` about every second, which returns the failure of another rank, if any. Neither should take
    /// long.
    ///
    /// # Errors
    /// [`Error::NoThread`].
    pub fn new(
        on_failure: impl Fn(&str) + Send + 'static,
        remote_failure: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<Self, Error> {
        let monitor = Arc::new(Monitor::default());
        let shared = monitor.clone();
        let thread = std::thread::Builder::new()
            .name("brigade-watchdog".to_owned())
            .spawn(move || shared.run(on_failure, remote_failure))
            .map_err(|error| Error::NoThread { reason: error.to_string() })?;
        Ok(Self { monitor, thread: Some(thread) })
    }

    /// Watches `communicator` until it ends: for asynchronous errors, and to abort it.
    pub fn register(&self, communicator: &Communicator) {
        let handle = communicator.handle();
        {
            let mut communicators = lock(&self.monitor.communicators);
            communicators.retain(|other| other.strong_count() > 0);
            communicators.push(Arc::downgrade(handle));
        }
        // The thread may already have aborted all that were registered before.
        if let Some(failure) = self.monitor.failure.get() {
            handle.abort(&failure.error.reason());
        }
    }

    /// Watches an operation, which fails if it takes longer than its deadline.
    pub fn watch(&self, work: WatchedWork) -> WorkHandle {
        let entry = Arc::new(Entry::new(work));
        lock(&self.monitor.entries).push(entry.clone());
        WorkHandle { monitor: self.monitor.clone(), entry }
    }

    /// How many operations are in flight, as far as the thread has seen.
    pub fn in_flight(&self) -> usize {
        lock(&self.monitor.entries).len()
    }

    /// Aborts all communicators within moments because of `reason`, unless something has failed before.
    pub fn fail(&self, reason: impl Into<String>) {
        self.monitor.fail(Error::Aborted { reason: reason.into() }, false);
    }

    /// Aborts all communicators because of `error`, unless something has failed before.
    pub fn fail_with(&self, error: Error) {
        self.monitor.fail(error, false);
    }

    /// Checks that nothing has failed, as every call does first.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure, with its text.
    pub fn check(&self) -> Result<(), Error> {
        self.monitor.check()
    }

    /// The first failure.
    pub fn failure(&self) -> Option<Error> {
        self.monitor.failure.get().map(|failure| failure.error.clone())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.monitor.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the watchdog's thread panicked");
        }
    }
}

impl WorkHandle {
    /// Whether the operation is done.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure of any operation; [`Error::Driver`].
    pub fn is_done(&self) -> Result<bool, Error> {
        // The event of an aborted operation completes, too.
        let done = self.entry.work.done.is_done();
        self.monitor.check()?;
        done
    }

    /// Waits on the host until the operation is done. Its deadline is the one that it started with.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure of any operation; [`Error::Driver`].
    pub fn wait(&self) -> Result<(), Error> {
        let mut backoff = Backoff::unlimited();
        while !self.is_done()? {
            if self.entry.is_overdue()? {
                self.monitor.fail(self.entry.overdue(), false);
                return self.monitor.check();
            }
            backoff.pause();
        }
        Ok(())
    }
}
