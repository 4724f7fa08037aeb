//! What every operation in flight can be asked.

use std::time::Instant;

use crate::flight::EntryId;
use crate::op::call::Call;

/// An operation in flight.
pub(crate) trait InFlightOp {
    fn call(&self) -> &Call;
    fn entry_id(&self) -> EntryId;
    /// When it became the first of its queue.
    fn started(&self) -> Option<Instant>;
    /// Whether a thread waits for it.
    fn is_awaited(&self) -> bool;
    /// The ranks of the group that have not called it, and those that have but from which something is missing. Known only
    /// for the first operation of a queue.
    fn missing(&self) -> (Vec<usize>, Vec<usize>);
    /// Payload bytes sent and received so far.
    fn traffic(&self) -> (u64, u64);
    /// Payload bytes sent so far to those ranks of the group for which `to` holds.
    fn sent(&self, to: &dyn Fn(usize) -> bool) -> u64;
}
