//! Receives of what nobody knows the size of: that goes ahead through the host, the values from GPU to GPU.
//!
//! A receive can be enqueued only when it is known how much comes. That is known as soon as the sender has enqueued its
//! send, so whenever this rank's host waits for something or begins an operation, it looks whether a receive can be enqueued: a
//! send never waits for a receive that was posted but not enqueued.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use brigade_comm::{Group, Pending};

use super::comm_stream::Rank;
use crate::backoff::lock;
use crate::error::Error;

/// The longest description of a message, in bytes.
const LONGEST_DESCRIPTION: usize = 1 << 20;

/// What a rank looks after whenever its host waits.
pub(crate) trait Tended: Send + Sync {
    fn tend(&self);
}

/// One direction between two ranks, at its receiving end. `T` is what enqueueing a receive gives.
pub struct Inbox<T> {
    rank: Arc<Rank>,
    group: Group,
    /// The sender's number in `group`.
    from: usize,
    posted: Mutex<VecDeque<Posted<T>>>,
}

struct Posted<T> {
    description: Pending<Vec<u8>>,
    enqueue: Enqueue<T>,
    slot: Arc<Mutex<Option<T>>>,
}

type Enqueue<T> = Box<dyn FnOnce(Result<Vec<u8>, brigade_comm::Error>) -> T + Send>;

impl<T: Send + 'static> Inbox<T> {
    /// What comes from rank `from` of `group`.
    pub fn new(rank: &Arc<Rank>, group: Group, from: usize) -> Arc<Self> {
        let inbox = Arc::new(Self { rank: rank.clone(), group, from, posted: Mutex::default() });
        let weak: Weak<Self> = Arc::downgrade(&inbox);
        rank.tend(weak);
        inbox
    }

    /// Posts a receive: `enqueue` is called with the message's description, in the order of the posts. The result waits for
    /// that, and is to be called on the thread that computes.
    pub fn post<E>(&self, enqueue: E) -> impl FnOnce() -> Result<T, Error> + Send + use<T, E>
    where
        E: FnOnce(Result<Vec<u8>, brigade_comm::Error>) -> T + Send + 'static,
    {
        let description = self.group.recv_message(self.from, LONGEST_DESCRIPTION);
        let slot = Arc::new(Mutex::new(None));
        let posted = Posted { description, enqueue: Box::new(enqueue), slot: slot.clone() };
        lock(&self.posted).push_back(posted);
        let rank = self.rank.clone();
        move || rank.until(|| Ok(lock(&slot).take()))
    }
}

impl<T: Send> Tended for Inbox<T> {
    fn tend(&self) {
        let mut posted = lock(&self.posted);
        while posted.front().is_some_and(|front| front.description.is_done()) {
            if let Some(Posted { description, enqueue, slot }) = posted.pop_front() {
                *lock(&slot) = Some(enqueue(description.wait()));
            }
        }
    }
}
