//! An operation that was enqueued and can be waited for.

use std::sync::Arc;

use super::rank::RankState;
use crate::driver::Event;
use crate::error::Error;
use crate::watchdog::WorkHandle;

/// An operation that was enqueued and can be waited for, as PyTorch's `WorkNCCL`. It owns the memory that the operation uses until
/// everything that is computed later runs after the operation.
pub struct NcclWork {
    rank: Arc<RankState>,
    done: Arc<Event>,
    handle: WorkHandle,
    /// None once it has been waited for.
    memory: Option<Box<dyn Send>>,
}

impl NcclWork {
    pub(super) fn new(
        rank: Arc<RankState>,
        done: Arc<Event>,
        handle: WorkHandle,
        memory: Box<dyn Send>,
    ) -> Self {
        Self { rank, done, handle, memory: Some(memory) }
    }

    /// Makes everything that is computed from now on run after the operation. The host does not wait, unless the
    /// [order](super::StreamOrder) is blocking.
    ///
    /// # Errors
    /// If anything of this rank has failed.
    pub fn synchronize(mut self) -> Result<(), Error> {
        self.block_compute()?;
        self.memory = None;
        Ok(())
    }

    /// Waits for the operation on the host.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize), or if its deadline passes.
    pub fn wait(mut self) -> Result<(), Error> {
        self.block_host()?;
        self.memory = None;
        Ok(())
    }

    /// As [`synchronize`](Self::synchronize), without releasing the memory.
    fn block_compute(&self) -> Result<(), Error> {
        if self.rank.order.is_blocking() {
            return self.block_host();
        }
        self.rank.check()?;
        self.rank.fail_on_error(self.rank.order.compute_after_comm(&self.done))
    }

    /// As [`wait`](Self::wait), without releasing the memory.
    pub(super) fn block_host(&self) -> Result<(), Error> {
        self.rank.fail_on_error(self.rank.wait_until(|| Ok(self.handle.is_done()?.then_some(()))))
    }
}

impl Drop for NcclWork {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if self.block_compute().is_err() {
            // NCCL may still write to it; the rank is about to end.
            std::mem::forget(memory);
        }
    }
}
