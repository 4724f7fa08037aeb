//! The order between the streams that a rank computes on and those of NCCL.

use crate::driver::{Event, Stream};
use crate::error::Error;

/// The order between the streams that a rank computes on and those of NCCL.
///
/// What waits for what must be a part of what a program that blocks at each wait would wait for: an operation comes after all
/// that the thread had computed when it began, and not after other operations that nobody has waited for.
pub trait Order: Send + Sync {
    /// Makes what `stream` is given next come after all that this thread has given the streams that it computes on.
    ///
    /// # Errors
    /// If the driver, or what was to be computed, failed.
    fn after_compute(&self, stream: &Stream) -> Result<(), Error>;

    /// Makes all that is computed from now on come after `done`.
    ///
    /// # Errors
    /// If the driver failed.
    fn before_compute(&self, done: &Event) -> Result<(), Error>;

    /// Whether the host waits for each operation instead.
    fn is_synchronous(&self) -> bool;
}
