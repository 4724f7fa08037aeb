//! Handles of operations in flight, and the buffers that engines work on.

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::op::buffer::HostBuffer;
use crate::sync::{lock, wait, wait_until};

/// An operation in flight that holds a buffer. Dropping it does not cancel the operation.
#[must_use = "an operation's failure is reported by wait()"]
pub struct Work<B> {
    completion: Arc<Completion<B>>,
    driver: Option<Arc<dyn Driver>>,
}

/// Makes progress for an engine that has no thread for it: whoever waits for an operation calls it again and again.
pub trait Driver: Send + Sync {
    /// Does what can be done without blocking, and fails what has passed its deadline. Gives how long the caller may sleep
    /// before the next call; it wakes up earlier when its operation completes.
    fn poll(&self) -> Duration;
}

struct Completion<B> {
    outcome: Mutex<Option<Result<B, Error>>>,
    arrived: Condvar,
    awaited: AtomicBool,
}

impl<B> Work<B> {
    /// Makes whoever waits drive the engine.
    pub(crate) fn driven_by(self, driver: Option<Arc<dyn Driver>>) -> Self {
        Self { driver, ..self }
    }

    /// Waits for the operation and gives the buffer back. The operation's own deadline bounds the wait; a buffer
    /// whose operation failed is dropped.
    ///
    /// # Errors
    /// If the operation failed.
    pub fn wait(self) -> Result<B, Error> {
        let Self { completion, driver } = &self;
        completion.awaited.store(true, Ordering::Relaxed);
        let mut outcome = lock(&completion.outcome);
        loop {
            if let Some(outcome) = outcome.take() {
                return outcome;
            }
            outcome = match driver {
                None => wait(&completion.arrived, outcome),
                Some(driver) => {
                    drop(outcome);
                    let sleep = driver.poll();
                    let outcome = lock(&completion.outcome);
                    match outcome.is_some() {
                        true => outcome,
                        false => wait_until(&completion.arrived, outcome, Instant::now() + sleep).0,
                    }
                }
            };
        }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_completed(&self) -> bool {
        if let Some(driver) = &self.driver
            && lock(&self.completion.outcome).is_none()
        {
            driver.poll();
        }
        lock(&self.completion.outcome).is_some()
    }
}

/// The buffer of an operation, as an engine sees it.
pub trait OpBuffer: Send {
    /// Makes room for a message. Called at most once, before a [`RecvMessage`](crate::OpType::RecvMessage) is filled, with
    /// the size that the peer gives and this rank's call accepts.
    ///
    /// # Errors
    /// If there is no memory for it.
    fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError>;

    /// The size of the memory, in bytes.
    fn size(&self) -> usize;

    /// The memory: the same region each time, except that [`reserve`](Self::reserve) changes its size.
    fn bytes(&mut self) -> &mut [u8];

    /// Whether a thread waits for the operation.
    fn is_awaited(&self) -> bool;

    /// Gives the buffer back, or the reason why the operation failed.
    fn complete(self: Box<Self>, outcome: Result<(), Error>);

    /// Reports why the operation failed, and never frees the memory: a library that the engine uses may still write it.
    fn abandon(self: Box<Self>, error: Error);
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
        let completion = Arc::new(Completion {
            outcome: Mutex::new(None),
            arrived: Condvar::new(),
            awaited: AtomicBool::new(false),
        });
        let owned = Self { buffer, reserve, completion: completion.clone() };
        (Box::new(owned), Work { completion, driver: None })
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

    fn size(&self) -> usize {
        self.buffer.as_bytes().len()
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

    fn abandon(self: Box<Self>, error: Error) {
        let Self { buffer, completion, .. } = *self;
        std::mem::forget(buffer);
        *lock(&completion.outcome) = Some(Err(error));
        completion.arrived.notify_all();
    }
}

/// A borrowed slice, whose owner drives the operation itself and sees its outcome directly.
pub(crate) struct BorrowedBuffer<'a>(pub(crate) &'a mut [u8]);

impl OpBuffer for BorrowedBuffer<'_> {
    fn reserve(&mut self, _: usize) -> Result<(), TryReserveError> {
        Ok(())
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    fn is_awaited(&self) -> bool {
        true
    }

    fn complete(self: Box<Self>, _: Result<(), Error>) {}

    fn abandon(self: Box<Self>, _: Error) {}
}
