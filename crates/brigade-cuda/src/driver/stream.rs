//! Streams and events of a GPU's primary context, the one that Burn's CUDA backend works in too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};

use crate::backoff::Patience;
use crate::driver::{Driver, NOT_READY, SUCCESS, driver};
use crate::error::Error;

const STREAM_NON_BLOCKING: u32 = 1;
const EVENT_DISABLE_TIMING: u32 = 2;
const WAIT_VALUE_GEQ: u32 = 0;

/// A GPU's primary context, kept alive.
pub struct Context {
    driver: &'static Driver,
    device: CUdevice,
    raw: CUcontext,
}

// SAFETY: a context may be used from any thread; see "Driver API, Context Management" in the CUDA manual.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of GPU `index`. It is not made current.
    ///
    /// # Errors
    /// Those of [`driver`](crate::driver()), and [`Error::Driver`] if there is no such GPU or it has no room.
    pub fn new(index: usize) -> Result<Arc<Self>, Error> {
        let driver = driver()?;
        let device = driver.device(index)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (driver.calls.primary_retain)(&mut raw, device) };
        driver.check(code, "cuDevicePrimaryCtxRetain", &format!("opening GPU {index}"))?;
        Ok(Arc::new(Self { driver, device, raw }))
    }

    /// Whether both are of one GPU.
    pub(crate) fn is_same_gpu(&self, other: &Self) -> bool {
        self.device == other.device
    }

    /// Makes it the calling thread's context until another is.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn make_current(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as self.
        let code = unsafe { (self.driver.calls.set_current)(self.raw) };
        self.driver.check(code, "cuCtxSetCurrent", "choosing a GPU for a thread")
    }

    /// Makes all work that is given to any stream of this context from now on wait for what `event` was
    /// recorded after.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::InvalidArgument`] if the driver cannot ([`Driver::has_context_events`]).
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        let operation = "making a context wait for an event";
        let Some(call) = self.driver.context_wait_event else {
            return Err(Error::InvalidArgument {
                operation: operation.to_owned(),
                reason: format!(
                    "the driver supports CUDA {}, and only 12.5 and later can",
                    self.driver.version_name()
                ),
            });
        };
        // SAFETY: both live as long as the references.
        let code = self.within(|| unsafe { call(self.raw, event.raw) })?;
        self.driver.check(code, "cuCtxWaitEvent", operation)
    }

    /// Runs `call` with this context on top of the thread's stack of contexts.
    pub(crate) fn within<R>(&self, call: impl FnOnce() -> R) -> Result<R, Error> {
        // SAFETY: the context lives as long as self.
        let code = unsafe { (self.driver.calls.push_current)(self.raw) };
        self.driver.check(code, "cuCtxPushCurrent", "choosing a GPU for a call")?;
        let result = call();
        let mut popped = std::ptr::null_mut();
        // SAFETY: writes one pointer; takes off what was pushed above.
        let code = unsafe { (self.driver.calls.pop_current)(&mut popped) };
        self.driver.check(code, "cuCtxPopCurrent", "leaving a GPU after a call")?;
        Ok(result)
    }

    fn warn(&self, result: Result<i32, Error>, call: &'static str) {
        if let Err(error) =
            result.and_then(|code| self.driver.check(code, call, "giving back what a GPU held"))
        {
            tracing::warn!("{error}");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `new`.
        let code = unsafe { (self.driver.calls.primary_release)(self.device) };
        self.warn(Ok(code), "cuDevicePrimaryCtxRelease");
    }
}

/// A queue of work of a GPU. It waits for no other stream unless told to, and has the highest priority that
/// the GPU offers: what is given to it is communication, which others wait for.
pub struct Stream {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// An empty stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let calls = &context.driver.calls;
        let mut raw = std::ptr::null_mut();
        let (mut lowest, mut highest) = (0, 0);
        let code = context.within(|| {
            // SAFETY: both calls write to locals. A GPU without priorities gives (0, 0).
            unsafe {
                if (calls.priority_range)(&mut lowest, &mut highest) != SUCCESS {
                    highest = 0;
                }
                (calls.stream_create)(&mut raw, STREAM_NON_BLOCKING, highest)
            }
        })?;
        context.driver.check(code, "cuStreamCreateWithPriority", "making a stream")?;
        Ok(Self { context: context.clone(), raw })
    }

    /// The stream, for calls of other libraries.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Makes what is given to this stream from now on wait for what `event` was recorded after.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: both live as long as the references.
        let code =
            self.context.within(|| unsafe { (driver.calls.stream_wait_event)(self.raw, event.raw, 0) })?;
        driver.check(code, "cuStreamWaitEvent", "making a stream wait for an event")
    }

    /// Records `event` after what was given to this stream until now.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: both live as long as the references.
        let code = self.context.within(|| unsafe { (driver.calls.event_record)(event.raw, self.raw) })?;
        driver.check(code, "cuEventRecord", "recording an event")
    }

    /// Makes what is given to this stream from now on wait until the 32-bit word at `address` is at least
    /// `value` (as a cyclic counter: until `word - value`, as a signed number, is not negative).
    ///
    /// # Safety
    /// `address` must be a word that this GPU can read, on a multiple of 4, until the wait is over.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub unsafe fn wait_value32(&self, address: CUdeviceptr, value: u32) -> Result<(), Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: the stream lives as long as self, and the caller vouches for the address.
        let call = || unsafe { (driver.calls.stream_wait_value)(self.raw, address, value, WAIT_VALUE_GEQ) };
        let code = self.context.within(call)?;
        driver.check(code, "cuStreamWaitValue32", "making a stream wait for a value in memory")
    }

    /// Whether all that was given to it is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for work that failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: the stream lives as long as self.
        match self.context.within(|| unsafe { (driver.calls.stream_query)(self.raw) })? {
            NOT_READY => Ok(false),
            code => driver.check(code, "cuStreamQuery", "looking after a stream").map(|()| true),
        }
    }

    /// Waits until all that was given to it is done.
    ///
    /// # Errors
    /// [`Error::Deadline`] after `deadline`; [`Error::Driver`].
    pub fn synchronize_within(&self, deadline: Duration) -> Result<(), Error> {
        let mut patience = Patience::new(Instant::now(), deadline);
        while !self.is_done()? {
            if !patience.pause() {
                return Err(Error::Deadline {
                    operation: "waiting for a stream".to_owned(),
                    group: "this rank".to_owned(),
                    waited: deadline,
                });
            }
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let calls = &self.context.driver.calls;
        // SAFETY: made in `new`, destroyed once. What is still in it runs on.
        let code = self.context.within(|| unsafe { (calls.stream_destroy)(self.raw) });
        self.context.warn(code, "cuStreamDestroy");
    }
}

/// A mark in a stream.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that is not recorded, and so done. It takes no times.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        let calls = &context.driver.calls;
        // SAFETY: writes one pointer.
        let code = context.within(|| unsafe { (calls.event_create)(&mut raw, EVENT_DISABLE_TIMING) })?;
        context.driver.check(code, "cuEventCreate", "making an event")?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Whether all that it was recorded after is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for work that failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: the event lives as long as self.
        match self.context.within(|| unsafe { (driver.calls.event_query)(self.raw) })? {
            NOT_READY => Ok(false),
            code => driver.check(code, "cuEventQuery", "looking at an event").map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let calls = &self.context.driver.calls;
        // SAFETY: made in `new`, destroyed once. What waits for it goes on to.
        let code = self.context.within(|| unsafe { (calls.event_destroy)(self.raw) });
        self.context.warn(code, "cuEventDestroy");
    }
}
