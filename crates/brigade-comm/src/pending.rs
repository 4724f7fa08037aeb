//! Handles of operations in flight.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, Ordering};
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
    awaited: AtomicBool,
}

impl<B> Slot<B> {
    fn new(outcome: Option<Result<B, Error>>) -> Arc<Self> {
        let awaited = AtomicBool::new(false);
        Arc::new(Self { outcome: Mutex::new(outcome), arrived: Condvar::new(), awaited })
    }
}

impl<B> Pending<B> {
    /// The handle of an operation that failed before it began.
    pub(crate) fn failed(error: Error) -> Self {
        Self { slot: Slot::new(Some(Err(error))) }
    }

    /// Waits for the operation and gives the buffer back. The operation's own deadline bounds the wait; a buffer
    /// whose operation failed is dropped.
    pub fn wait(self) -> Result<B, Error> {
        self.slot.awaited.store(true, Ordering::Relaxed);
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
    /// Called once before a receive, with the size that the peer gives and this rank's call accepts.
    fn make_room(&mut self, bytes: usize) -> Result<(), TryReserveError>;
    fn bytes(&mut self) -> &mut [u8];
    /// Whether a thread waits for the operation.
    fn is_awaited(&self) -> bool;
    fn complete(self: Box<Self>, outcome: Result<(), Error>);
}

/// An owned buffer, with the handle that waits for it.
pub(crate) struct Owned<B> {
    buffer: B,
    make_room: fn(&mut B, usize) -> Result<(), TryReserveError>,
    slot: Arc<Slot<B>>,
}

impl<B: HostBuffer> Owned<B> {
    /// A buffer that has its size.
    pub(crate) fn sized(buffer: B) -> (Box<dyn Work>, Pending<B>) {
        Self::with(buffer, |_, _| Ok(()))
    }

    fn with(
        buffer: B,
        make_room: fn(&mut B, usize) -> Result<(), TryReserveError>,
    ) -> (Box<dyn Work>, Pending<B>) {
        let slot = Slot::new(None);
        (Box::new(Self { buffer, make_room, slot: slot.clone() }), Pending { slot })
    }
}

impl Owned<Vec<u8>> {
    /// A buffer that is allocated when the peer's size is known.
    pub(crate) fn message() -> (Box<dyn Work>, Pending<Vec<u8>>) {
        Self::with(Vec::new(), |buffer, bytes| {
            buffer.try_reserve_exact(bytes)?;
            buffer.resize(bytes, 0);
            Ok(())
        })
    }
}

impl<B: HostBuffer> Work for Owned<B> {
    fn make_room(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        (self.make_room)(&mut self.buffer, bytes)
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.as_bytes_mut()
    }

    fn is_awaited(&self) -> bool {
        self.slot.awaited.load(Ordering::Relaxed)
    }

    fn complete(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { buffer, slot, .. } = *self;
        *lock(&slot.outcome) = Some(outcome.map(|()| buffer));
        slot.arrived.notify_all();
    }
}

/// A borrowed slice, whose owner drives the operation itself and sees its outcome directly.
pub(crate) struct Borrowed<'a>(pub(crate) &'a mut [u8]);

impl Work for Borrowed<'_> {
    fn make_room(&mut self, _: usize) -> Result<(), TryReserveError> {
        Ok(())
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    fn is_awaited(&self) -> bool {
        true
    }

    fn complete(self: Box<Self>, _: Result<(), Error>) {}
}
