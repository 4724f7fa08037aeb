//! Communicators with a stream each, and what all of a rank's have in common.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use brigade_comm::flight::Outside;
use brigade_comm::{DType, Group, Operation as Kind};

use super::order::Order;
use super::receive_queue::Tended;
use super::work::InFlight;
use crate::backoff::{Patience, lock};
use crate::driver::{Context, Event, Stream};
use crate::error::Error;
use crate::nccl::Communicator;
use crate::nccl::Queue;
use crate::watchdog::{Operation, Underway, Watch};

/// What all communicators of a rank share.
pub struct Rank {
    pub(crate) watch: Watch,
    pub(crate) order: Box<dyn Order>,
    context: Arc<Context>,
    /// All ranks.
    world: Group,
    /// One operation is enqueued at a time, so that all streams get theirs in the order of the program.
    enqueueing: Mutex<()>,
    inboxes: Mutex<Vec<Weak<dyn Tended>>>,
    /// They end together when the rank does; see [`Drop`].
    ends: Mutex<Vec<Arc<End>>>,
}

/// This rank's end of a group: its communicator, and the stream of its operations.
struct End {
    communicator: Communicator,
    stream: Stream,
}

impl Drop for Rank {
    /// Ends all communicators side by side. Each waits for the other ranks to end theirs, and they let go of them in other
    /// orders: one that sends to a neighbour receives from it, too.
    fn drop(&mut self) {
        let ends = std::mem::take(&mut *lock(&self.ends));
        if std::thread::panicking() {
            return;
        }
        std::thread::scope(|scope| {
            for end in ends {
                // Where there is no thread left, it ends here.
                let _ = std::thread::Builder::new()
                    .name("brigade-end".to_owned())
                    .spawn_scoped(scope, || drop(end));
            }
        });
    }
}

impl Rank {
    /// A rank of `world`. An operation may take [what that allows](Group::limit) to get into its stream, and as long again from
    /// when its input is there.
    pub fn new(watch: Watch, order: Box<dyn Order>, context: Arc<Context>, world: Group) -> Arc<Self> {
        let (enqueueing, inboxes, ends) = Default::default();
        Arc::new(Self { watch, order, context, world, enqueueing, inboxes, ends })
    }

    /// How long an operation that begins now may take.
    fn limit(&self) -> Duration {
        self.world.limit()
    }

    /// Whether all is well.
    ///
    /// # Errors
    /// [`Error::Aborted`] after the first failure.
    pub fn check(&self) -> Result<(), Error> {
        self.watch.check()
    }

    /// Ends everything because of what went wrong outside of NCCL.
    pub fn fail(&self, reason: impl Into<String>) {
        self.watch.fail(reason);
    }

    /// Ends everything if `result` is an error: what fails on this rank alone, others would wait for.
    ///
    /// # Errors
    /// Those of `result`.
    pub fn or_fail<T, E: Display>(&self, result: Result<T, E>) -> Result<T, E> {
        result.inspect_err(|error| self.fail(error.to_string()))
    }

    /// Looks after an inbox whenever the host waits.
    pub(crate) fn tend(&self, inbox: Weak<dyn Tended>) {
        lock(&self.inboxes).push(inbox);
    }

    /// Waits on the host until `ready` gives something, and meanwhile enqueues the receives that can be.
    pub(crate) fn until<T>(&self, ready: impl Fn() -> Result<Option<T>, Error>) -> Result<T, Error> {
        // What is waited for has a deadline of its own; this one is for what nobody else ends.
        let mut patience = Patience::new(Instant::now(), self.limit().saturating_mul(4));
        loop {
            self.tend_inboxes();
            if let Some(value) = ready()? {
                return Ok(value);
            }
            self.watch.check()?;
            if !patience.pause() {
                self.watch.fail("what another rank has to do for a message between stages was not done");
            }
        }
    }

    fn tend_inboxes(&self) {
        let inboxes: Vec<_> = lock(&self.inboxes).iter().filter_map(Weak::upgrade).collect();
        inboxes.iter().for_each(|inbox| inbox.tend());
    }
}

/// A communicator and the stream of its operations, which run one after the other. They end when the rank does.
pub struct Lane {
    end: Arc<End>,
    sequence: AtomicU64,
    notes: Outside,
    rank: Arc<Rank>,
}

impl Lane {
    /// A lane of `rank`, whose operations are noted in the flight recorder.
    ///
    /// # Errors
    /// If there is no stream left.
    pub fn new(rank: &Arc<Rank>, communicator: Communicator, notes: Outside) -> Result<Self, Error> {
        rank.watch.register(&communicator);
        let stream = Stream::new(&rank.context)?;
        let end = Arc::new(End { communicator, stream });
        lock(&rank.ends).push(end.clone());
        Ok(Self { end, sequence: AtomicU64::new(0), notes, rank: rank.clone() })
    }

    /// Ends its communicator because the rank has failed.
    pub fn abort(&self, reason: &str) {
        self.end.communicator.abort(reason);
    }

    /// What it has in common with the rank's other lanes.
    pub fn rank(&self) -> &Arc<Rank> {
        &self.rank
    }

    /// Enqueues an operation on `bytes` bytes of this rank, after all that this thread has given the streams that it
    /// computes on. `memory` holds all that the operation touches; it is dropped when all that is computed later comes
    /// after the operation.
    ///
    /// # Errors
    /// If it cannot be enqueued: then this rank has failed, and others hear of it.
    pub fn start(
        &self,
        kind: Kind,
        (dtype, bytes): (DType, usize),
        memory: Box<dyn Send>,
        enqueue: impl FnOnce(&Queue<'_>),
    ) -> Result<InFlight, Error> {
        let rank = &self.rank;
        rank.watch.check()?;
        if !kind.is_receive() {
            rank.tend_inboxes();
        }
        let End { communicator, stream } = &*self.end;
        let one = lock(&rank.enqueueing);
        let deadline = rank.limit();
        let begun = || {
            rank.order.after_compute(stream)?;
            let (ready, done) = (Event::new(&rank.context)?, Event::new(&rank.context)?);
            stream.record(&ready)?;
            communicator.enqueue(kind.name(), stream, deadline, enqueue)?;
            stream.record(&done)?;
            let done = Arc::new(done);
            let operation = Operation {
                name: kind.name(),
                group: communicator.group().to_owned(),
                sequence: self.sequence.fetch_add(1, Relaxed),
                bytes,
            };
            let ticket = rank.watch.begin(Underway {
                operation,
                ready: Some(Arc::new(ready)),
                done: done.clone(),
                deadline,
                note: Some(self.notes.begin(kind, bytes as u64, dtype)),
            });
            Ok((done, ticket))
        };
        let begun = begun();
        drop(one);
        match begun {
            Ok((done, ticket)) => {
                let in_flight = InFlight::new(rank.clone(), done, ticket, memory);
                if rank.order.is_synchronous() && !kind.is_transfer() {
                    in_flight.finish()?;
                }
                Ok(in_flight)
            }
            Err(error) => {
                std::mem::forget(memory);
                rank.watch.fail_with(Error::clone(&error));
                Err(error)
            }
        }
    }
}
