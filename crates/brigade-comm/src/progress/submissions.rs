//! The operations that have been called and that the engine has not yet taken up.

use crate::op::call::Call;
use crate::progress::in_flight::QueuedOp;

/// What has been called and not yet been taken up by whoever drives the engine.
pub(super) struct Submissions {
    pub(super) ops: Vec<QueuedOp>,
    /// Operations that have been called and are not complete.
    pub(super) outstanding: usize,
    pub(super) collectives: u64,
    pub(super) transfers: Vec<[u64; 2]>,
    pub(super) has_thread: bool,
    pub(super) closing: bool,
}

/// A collective's call, checked.
pub(crate) struct CollectiveArgs {
    /// Its sequence number is filled in when it is its turn.
    pub(crate) call: Call,
    /// The rank of the root in the group.
    pub(crate) root: usize,
}
