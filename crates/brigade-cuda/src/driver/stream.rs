//! Streams for communication.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::context::Context;
use super::event::Event;
use super::library::{NOT_READY, SUCCESS};
use crate::error::Error;
use crate::polling::Backoff;

const STREAM_NON_BLOCKING: u32 = 1;
const WAIT_VALUE_GEQ: u32 = 0;

/// A stream of a GPU. It waits for no other stream unless told to. Communication, which others wait for, has the highest priority that the GPU offers.
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// An empty stream, with the highest priority that the GPU offers.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let functions = &context.driver.functions;
        let mut raw = std::ptr::null_mut();
        let (mut lowest, mut highest) = (0, 0);
        let code = context.with_current(|| {
            // SAFETY: both calls write to locals. A GPU without priorities returns (0, 0).
            unsafe {
                if (functions.priority_range)(&mut lowest, &mut highest) != SUCCESS {
                    highest = 0;
                }
                (functions.stream_create)(&mut raw, STREAM_NON_BLOCKING, highest)
            }
        })?;
        context.driver.check(code, "cuStreamCreateWithPriority", "making a stream")?;
        Ok(Self { context: context.clone(), raw })
    }

    /// The stream, for calls to other libraries.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Makes everything that is enqueued on this stream from now on wait for `event`.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: both live as long as the references.
        let code = self
            .context
            .with_current(|| unsafe { (driver.functions.stream_wait_event)(self.raw, event.raw, 0) })?;
        driver.check(code, "cuStreamWaitEvent", "making a stream wait for an event")
    }

    /// Records `event` after everything that has been enqueued on this stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: both live as long as the references.
        let code =
            self.context.with_current(|| unsafe { (driver.functions.event_record)(event.raw, self.raw) })?;
        driver.check(code, "cuEventRecord", "recording an event")
    }

    /// Makes everything that is enqueued on this stream from now on wait until the 32-bit word at `address` is at least `value` (as
    /// a cyclic counter: until `word - value`, as a signed number, is not negative).
    ///
    /// # Safety
    /// `address` must be a word that this GPU can read, on a multiple of 4, until the wait is over.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub unsafe fn wait_value32(&self, address: CUdeviceptr, value: u32) -> Result<(), Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: the stream lives as long as self, and the caller vouches for the address.
        let call =
            || unsafe { (driver.functions.stream_wait_value)(self.raw, address, value, WAIT_VALUE_GEQ) };
        let code = self.context.with_current(call)?;
        driver.check(code, "cuStreamWaitValue32", "making a stream wait for a value in memory")
    }

    /// Whether everything that was enqueued is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for work that failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: the stream lives as long as self.
        match self.context.with_current(|| unsafe { (driver.functions.stream_query)(self.raw) })? {
            NOT_READY => Ok(false),
            code => driver.check(code, "cuStreamQuery", "querying a stream").map(|()| true),
        }
    }

    /// Waits until everything that was enqueued is done.
    ///
    /// # Errors
    /// [`Error::Timeout`] after `timeout`; [`Error::Driver`].
    pub fn synchronize_within(&self, timeout: Duration) -> Result<(), Error> {
        let mut backoff = Backoff::new(Instant::now(), timeout);
        while !self.is_done()? {
            if !backoff.pause() {
                return Err(Error::Timeout {
                    operation: "waiting for a stream".to_owned(),
                    group: "this rank".to_owned(),
                    waited: timeout,
                });
            }
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let functions = &self.context.driver.functions;
        // SAFETY: made in `new`, destroyed once. Work that is still in it keeps running.
        let code = self.context.with_current(|| unsafe { (functions.stream_destroy)(self.raw) });
        self.context.warn(code, "cuStreamDestroy");
    }
}
