//! Events, and contexts that wait for them.

use std::sync::Arc;

use cudarc::driver::sys::CUevent;

use super::context::Context;
use super::library::NOT_READY;
use crate::error::Error;

const EVENT_DISABLE_TIMING: u32 = 2;

/// An event: it completes once everything that it was recorded after is done.
pub struct Event {
    context: Arc<Context>,
    pub(super) raw: CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has not been recorded, which counts as done. It does not measure time.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        let functions = &context.driver.functions;
        // SAFETY: writes one pointer.
        let code =
            context.with_current(|| unsafe { (functions.event_create)(&mut raw, EVENT_DISABLE_TIMING) })?;
        context.driver.check(code, "cuEventCreate", "making an event")?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Whether everything that it was recorded after is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for work that failed.
    pub fn is_done(&self) -> Result<bool, Error> {
        let Context { driver, .. } = *self.context;
        // SAFETY: the event lives as long as self.
        match self.context.with_current(|| unsafe { (driver.functions.event_query)(self.raw) })? {
            NOT_READY => Ok(false),
            code => driver.check(code, "cuEventQuery", "querying an event").map(|()| true),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let functions = &self.context.driver.functions;
        // SAFETY: made in `new`, destroyed once. Streams that wait for it keep waiting.
        let code = self.context.with_current(|| unsafe { (functions.event_destroy)(self.raw) });
        self.context.warn(code, "cuEventDestroy");
    }
}

impl Context {
    /// Makes all work that is enqueued on any stream of this context from now on wait for `event`.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::InvalidArgument`] if the driver cannot ([`Driver::has_context_events`](super::Driver::has_context_events)).
    pub fn wait_event(&self, event: &Event) -> Result<(), Error> {
        let operation = "making a context wait for an event";
        let Some(call) = self.driver.context_wait_event else {
            return Err(Error::InvalidArgument {
                operation: operation.to_owned(),
                reason: format!(
                    "the driver supports CUDA {}, but this needs 12.5 or later",
                    self.driver.version_name()
                ),
            });
        };
        // SAFETY: both live as long as the references.
        let code = self.with_current(|| unsafe { call(self.raw, event.raw) })?;
        self.driver.check(code, "cuCtxWaitEvent", operation)
    }
}
