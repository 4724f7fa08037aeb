//! The order between the streams that a rank computes on and those of NCCL.

use crate::driver::{Event, Stream};
use crate::error::Error;

/// The order between the streams that a rank computes on and those of NCCL.
///
/// An operation runs after everything that its thread had computed when it was enqueued, and after no other operation that
/// nobody has waited for. So the dependencies on the GPU are a subset of those of a program that blocks at each wait, and
/// cannot deadlock where that program doesn't.
pub trait StreamOrder: Send + Sync {
    /// Makes whatever `stream` is given next run after everything that this thread has enqueued on the streams it computes on.
    ///
    /// # Errors
    /// If the driver, or one of the computations, failed.
    fn comm_after_compute(&self, stream: &Stream) -> Result<(), Error>;

    /// Makes everything that is computed from now on run after `done`.
    ///
    /// # Errors
    /// If the driver failed.
    fn compute_after_comm(&self, done: &Event) -> Result<(), Error>;

    /// Whether the host blocks in each operation instead.
    fn is_blocking(&self) -> bool;
}
