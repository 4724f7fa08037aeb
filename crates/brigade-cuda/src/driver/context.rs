//! Primary contexts of GPUs.

use std::sync::Arc;

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::library::{Driver, driver};
use crate::error::Error;

/// A GPU's primary context, kept alive. Burn's CUDA backend works in the same one.
pub struct Context {
    pub(super) driver: &'static Driver,
    device: CUdevice,
    pub(super) raw: CUcontext,
}

// SAFETY: a context may be used from any thread; see "Driver API, Context Management" in the CUDA manual.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The primary context of GPU `index`. It is not made current.
    ///
    /// # Errors
    /// Those of [`driver`](crate::driver()), and [`Error::Driver`] if there is no such GPU or its memory is full.
    pub fn new(index: usize) -> Result<Arc<Self>, Error> {
        let driver = driver()?;
        let device = driver.device(index)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (driver.functions.primary_retain)(&mut raw, device) };
        driver.check(code, "cuDevicePrimaryCtxRetain", &format!("opening GPU {index}"))?;
        Ok(Arc::new(Self { driver, device, raw }))
    }

    /// Whether both belong to the same GPU.
    pub(crate) fn is_same_gpu(&self, other: &Self) -> bool {
        self.device == other.device
    }

    /// Makes it the calling thread's current context.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn make_current(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as self.
        let code = unsafe { (self.driver.functions.set_current)(self.raw) };
        self.driver.check(code, "cuCtxSetCurrent", "selecting a GPU for a thread")
    }

    /// Runs `call` with this context on top of the thread's stack of contexts.
    pub(crate) fn with_current<R>(&self, call: impl FnOnce() -> R) -> Result<R, Error> {
        // SAFETY: the context lives as long as self.
        let code = unsafe { (self.driver.functions.push_current)(self.raw) };
        self.driver.check(code, "cuCtxPushCurrent", "selecting a GPU for a call")?;
        let result = call();
        let mut popped = std::ptr::null_mut();
        // SAFETY: writes one pointer; pops what was pushed above.
        let code = unsafe { (self.driver.functions.pop_current)(&mut popped) };
        self.driver.check(code, "cuCtxPopCurrent", "restoring the GPU after a call")?;
        Ok(result)
    }

    /// Logs the failure of a call that frees something.
    pub(super) fn warn(&self, result: Result<i32, Error>, call: &'static str) {
        if let Err(error) = result.and_then(|code| self.driver.check(code, call, "freeing what a GPU held")) {
            tracing::warn!("{error}");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `new`.
        let code = unsafe { (self.driver.functions.primary_release)(self.device) };
        self.warn(Ok(code), "cuDevicePrimaryCtxRelease");
    }
}
