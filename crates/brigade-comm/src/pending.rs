//! Handles of operations in flight.

use std::sync::{Arc, Condvar, Mutex};

use crate::buffer::HostBuffer;
use crate::error::Error;
use crate::sync::{lock, wait};

/// An operation in flight that holds a buffer. Dropping it does not cancel the operation.
#[must_use = "an operation's failure is reported by wait()"]
pub struct Pending<B> {
    slot: Arc<Slot<B>>,
}

struct Slot<B> {
    outcome: Mutex<Option<Result<B, Error>>>,
    arrived: Condvar,
}

impl<B> Pending<B> {
    /// The handle of an operation that failed before it began.
    pub(crate) fn failed(error: Error) -> Self {
        Self { slot: Arc::new(Slot { outcome: Mutex::new(Some(Err(error))), arrived: Condvar::new() }) }
    }

    /// Waits for the operation and gives the buffer back. The operation's own deadline bounds the wait; a buffer
    /// whose operation failed is dropped.
    pub fn wait(self) -> Result<B, Error> {
        let mut outcome = lock(&self.slot.outcome);
        loop {
            match outcome.take() {
                Some(outcome) => return outcome,
                None => outcome = wait(&self.slot.arrived, outcome),
            }
        }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_done(&self) -> bool {
        lock(&self.slot.outcome).is_some()
    }
}

/// What an operation in flight works on.
pub(crate) trait Work: Send {
    fn bytes(&mut self) -> &mut [u8];
    fn complete(self: Box<Self>, outcome: Result<(), Error>);
}

/// An owned buffer, with the handle that waits for it.
pub(crate) struct Owned<B> {
    buffer: B,
    slot: Arc<Slot<B>>,
}

impl<B: HostBuffer> Owned<B> {
    pub(crate) fn new(buffer: B) -> (Box<Self>, Pending<B>) {
        let slot = Arc::new(Slot { outcome: Mutex::new(None), arrived: Condvar::new() });
        (Box::new(Self { buffer, slot: slot.clone() }), Pending { slot })
    }
}

impl<B: HostBuffer> Work for Owned<B> {
    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.as_bytes_mut()
    }

    fn complete(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { buffer, slot } = *self;
        *lock(&slot.outcome) = Some(outcome.map(|()| buffer));
        slot.arrived.notify_all();
    }
}

/// A borrowed slice, whose owner drives the operation itself and sees its outcome directly.
pub(crate) struct Borrowed<'a>(pub(crate) &'a mut [u8]);

impl Work for Borrowed<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    fn complete(self: Box<Self>, _: Result<(), Error>) {}
}
