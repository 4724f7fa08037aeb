//! Receives of messages whose size is not known in advance: the size travels ahead through the host, the values from GPU to
//! GPU.
//!
//! NCCL needs the size when a receive is enqueued. The sender sends it as soon as it has enqueued the values. Whenever this
//! rank's host waits, or starts an operation, it enqueues every receive whose size has arrived. So no send ever waits for a
//! receive that was posted but not enqueued.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use brigade_comm::{Group, Work};

use super::rank::{Progress, RankState};
use crate::error::Error;
use crate::polling::lock;

/// The longest description of a message, in bytes.
const MAX_DESCRIPTION: usize = 1 << 20;

/// The receives that are posted for one sender, in order. `T` is what enqueueing a receive returns.
pub struct ReceiveQueue<T> {
    rank: Arc<RankState>,
    group: Group,
    /// The sender's rank in `group`.
    from: usize,
    posted: Mutex<VecDeque<Posted<T>>>,
}

struct Posted<T> {
    description: Work<Vec<u8>>,
    enqueue: Enqueue<T>,
    slot: Arc<Mutex<Option<T>>>,
}

type Enqueue<T> = Box<dyn FnOnce(Result<Vec<u8>, brigade_comm::Error>) -> T + Send>;

impl<T: Send + 'static> ReceiveQueue<T> {
    /// A queue for messages from rank `from` of `group`.
    pub fn new(rank: &Arc<RankState>, group: Group, from: usize) -> Arc<Self> {
        let queue = Arc::new(Self { rank: rank.clone(), group, from, posted: Mutex::default() });
        let weak: Weak<Self> = Arc::downgrade(&queue);
        rank.add_receive_queue(weak);
        queue
    }

    /// Posts a receive: `enqueue` is called with the message's description, in the order of the posts. The returned function
    /// waits for that; call it on the thread that computes.
    pub fn post<E>(&self, enqueue: E) -> impl FnOnce() -> Result<T, Error> + Send + use<T, E>
    where
        E: FnOnce(Result<Vec<u8>, brigade_comm::Error>) -> T + Send + 'static,
    {
        let description = self.group.recv_message(self.from, MAX_DESCRIPTION);
        let slot = Arc::new(Mutex::new(None));
        let posted = Posted { description, enqueue: Box::new(enqueue), slot: slot.clone() };
        lock(&self.posted).push_back(posted);
        let rank = self.rank.clone();
        move || rank.wait_until(|| Ok(lock(&slot).take()))
    }
}

impl<T: Send> Progress for ReceiveQueue<T> {
    fn progress(&self) {
        let mut posted = lock(&self.posted);
        while posted.front().is_some_and(|front| front.description.is_completed()) {
            if let Some(Posted { description, enqueue, slot }) = posted.pop_front() {
                *lock(&slot) = Some(enqueue(description.wait()));
            }
        }
    }
}
