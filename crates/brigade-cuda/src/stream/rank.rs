//! What all communication streams of a rank share, and how they shut down together.

use std::fmt::Display;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use brigade_comm::Group;

use super::order::StreamOrder;
use crate::driver::{Context, Stream};
use crate::error::Error;
use crate::nccl::Communicator;
use crate::polling::{Backoff, lock};
use crate::watchdog::Watchdog;

/// What all communication streams of a rank share.
pub struct RankState {
    pub(crate) watchdog: Watchdog,
    pub(crate) order: Box<dyn StreamOrder>,
    pub(super) context: Arc<Context>,
    /// All ranks.
    world: Group,
    /// One operation is enqueued at a time, so that all streams get theirs in the order of the program.
    pub(super) enqueueing: Mutex<()>,
    receive_queues: Mutex<Vec<Weak<dyn Progress>>>,
    /// They are shut down together when the rank is dropped; see [`Drop`].
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
}

/// Work that the host advances whenever it waits, as MPI's progress engine does.
pub(super) trait Progress: Send + Sync {
    /// Does what can be done without waiting.
    fn progress(&self);
}

/// This rank's endpoint of a group: its communicator, and the stream that its operations run on.
pub(super) struct Endpoint {
    pub(super) communicator: Communicator,
    pub(super) stream: Stream,
}

impl Drop for RankState {
    /// Finalizes all communicators in parallel. Each waits until the other ranks finalize theirs, and ranks drop them in
    /// different orders: a rank that sends to a neighbour also receives from it.
    fn drop(&mut self) {
        let endpoints = std::mem::take(&mut *lock(&self.endpoints));
        if std::thread::panicking() {
            return;
        }
        std::thread::scope(|scope| {
            for endpoint in endpoints {
                // If no thread can be started, the closure is dropped here, and the endpoint with it.
                let _ = std::thread::Builder::new()
                    .name("brigade-finalize".to_owned())
                    .spawn_scoped(scope, || drop(endpoint));
            }
        });
    }
}

impl RankState {
    /// A rank of `world`. An operation may take the world's [timeout](brigade_comm::ProcessGroup::op_timeout) to get into its stream, and as long again
    /// once its input is ready.
    pub fn new(
        watchdog: Watchdog,
        order: Box<dyn StreamOrder>,
        context: Arc<Context>,
        world: Group,
    ) -> Arc<Self> {
        let (enqueueing, receive_queues, endpoints) = Default::default();
        Arc::new(Self { watchdog, order, context, world, enqueueing, receive_queues, endpoints })
    }

    /// How long an operation that starts now may take.
    pub(super) fn op_timeout(&self) -> Duration {
        self.world.op_timeout()
    }

    /// Checks that nothing has failed.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure.
    pub fn check(&self) -> Result<(), Error> {
        self.watchdog.check()
    }

    /// Aborts all communicators because of a failure outside of NCCL.
    pub fn fail(&self, reason: impl Into<String>) {
        self.watchdog.fail(reason);
    }

    /// Aborts all communicators if `result` is an error: other ranks would wait for what failed on this one.
    ///
    /// # Errors
    /// Those of `result`.
    pub fn fail_on_error<T, E: Display>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| self.fail(error.to_string()))
    }

    /// Shuts `endpoint` down together with the rank's others.
    pub(super) fn add_endpoint(&self, endpoint: Arc<Endpoint>) {
        lock(&self.endpoints).push(endpoint);
    }

    /// Advances `queue` whenever the host waits.
    pub(super) fn add_receive_queue(&self, queue: Weak<dyn Progress>) {
        lock(&self.receive_queues).push(queue);
    }

    /// Waits on the host until `ready` returns a value, and meanwhile enqueues every receive whose size has become known.
    pub(super) fn wait_until<T>(&self, ready: impl Fn() -> Result<Option<T>, Error>) -> Result<T, Error> {
        // Whatever is waited for has a deadline of its own; this one is the backstop for what nothing else ends.
        let mut backoff = Backoff::new(Instant::now(), self.op_timeout().saturating_mul(4));
        loop {
            self.progress();
            if let Some(value) = ready()? {
                return Ok(value);
            }
            self.watchdog.check()?;
            if !backoff.pause() {
                self.watchdog.fail("another rank has not done its part of a message between stages");
            }
        }
    }

    /// Enqueues every receive whose size is known.
    pub(super) fn progress(&self) {
        let queues: Vec<_> = lock(&self.receive_queues).iter().filter_map(Weak::upgrade).collect();
        queues.iter().for_each(|queue| queue.progress());
    }
}
