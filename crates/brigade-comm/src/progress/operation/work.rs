//! Handles of operations in flight.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::error::Error;
use crate::op::buffer::HostBuffer;
use crate::sync::{lock, wait};

/// An operation in flight that holds a buffer. Dropping it does not cancel the operation.
#[must_use = "an operation's failure is reported by wait()"]
pub struct Work<B> {
    completion: Arc<Completion<B>>,
}

struct Completion<B> {
    outcome: Mutex<Option<Result<B, Error>>>,
    arrived: Condvar,
    awaited: AtomicBool,
}

impl<B> Completion<B> {
    fn new(outcome: Option<Result<B, Error>>) -> Arc<Self> {
        let awaited = AtomicBool::new(false);
        Arc::new(Self { outcome: Mutex::new(outcome), arrived: Condvar::new(), awaited })
    }
}

impl<B> Work<B> {
    /// The handle of an operation that failed before it began.
    pub(crate) fn failed(error: Error) -> Self {
        Self { completion: Completion::new(Some(Err(error))) }
    }

    /// Waits for the operation and gives the buffer back. The operation's own deadline bounds the wait; a buffer
    /// whose operation failed is dropped.
    pub fn wait(self) -> Result<B, Error> {
        self.completion.awaited.store(true, Ordering::Relaxed);
        let mut outcome = lock(&self.completion.outcome);
        loop {
            match outcome.take() {
                Some(outcome) => return outcome,
                None => outcome = wait(&self.completion.arrived, outcome),
            }
        }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_completed(&self) -> bool {
        lock(&self.completion.outcome).is_some()
    }
}

/// What an operation in flight works on.
pub(crate) trait OpBuffer: Send {
    /// Called once before a receive, with the size that the peer gives and this rank's call accepts.
    fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError>;
    fn bytes(&mut self) -> &mut [u8];
    /// Whether a thread waits for the operation.
    fn is_awaited(&self) -> bool;
    fn complete(self: Box<Self>, outcome: Result<(), Error>);
}

/// An owned buffer, with the handle that waits for it.
pub(crate) struct OwnedBuffer<B> {
    buffer: B,
    reserve: fn(&mut B, usize) -> Result<(), TryReserveError>,
    completion: Arc<Completion<B>>,
}

impl<B: HostBuffer> OwnedBuffer<B> {
    /// A buffer that has its size.
    pub(crate) fn sized(buffer: B) -> (Box<dyn OpBuffer>, Work<B>) {
        Self::with(buffer, |_, _| Ok(()))
    }

    fn with(
        buffer: B,
        reserve: fn(&mut B, usize) -> Result<(), TryReserveError>,
    ) -> (Box<dyn OpBuffer>, Work<B>) {
        let completion = Completion::new(None);
        (Box::new(Self { buffer, reserve, completion: completion.clone() }), Work { completion })
    }
}

impl OwnedBuffer<Vec<u8>> {
    /// A buffer that is allocated when the peer's size is known.
    pub(crate) fn message() -> (Box<dyn OpBuffer>, Work<Vec<u8>>) {
        Self::with(Vec::new(), |buffer, bytes| {
            buffer.try_reserve_exact(bytes)?;
            buffer.resize(bytes, 0);
            Ok(())
        })
    }
}

impl<B: HostBuffer> OpBuffer for OwnedBuffer<B> {
    fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        (self.reserve)(&mut self.buffer, bytes)
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.as_bytes_mut()
    }

    fn is_awaited(&self) -> bool {
        self.completion.awaited.load(Ordering::Relaxed)
    }

    fn complete(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { buffer, completion, .. } = *self;
        *lock(&completion.outcome) = Some(outcome.map(|()| buffer));
        completion.arrived.notify_all();
    }
}

/// A borrowed slice, whose owner drives the operation itself and sees its outcome directly.
pub(crate) struct BorrowedBuffer<'a>(pub(crate) &'a mut [u8]);

impl OpBuffer for BorrowedBuffer<'_> {
    fn reserve(&mut self, _: usize) -> Result<(), TryReserveError> {
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
