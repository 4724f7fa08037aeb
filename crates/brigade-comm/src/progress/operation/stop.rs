//! Why an operation cannot continue.

use crate::link::error::LinkError;
use crate::op::call::Call;

/// Why an operation cannot continue, and because of which rank of the group.
#[derive(Debug)]
pub(crate) struct Stop {
    pub(crate) peer: usize,
    pub(crate) reason: StopReason,
}

/// What a peer did.
#[derive(Debug)]
pub(crate) enum StopReason {
    Link(LinkError),
    Header(String),
    OtherCall(Box<Call>),
    /// There is no memory for what it sends.
    NoMemory(Box<Call>, String),
}

impl Stop {
    pub(crate) fn link(peer: usize) -> impl FnOnce(LinkError) -> Self {
        move |error| Self { peer, reason: StopReason::Link(error) }
    }
}
