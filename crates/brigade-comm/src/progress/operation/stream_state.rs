//! The bytes of an operation on a link: a header, the segments of its plan, and zeros up to a multiple of the header's
//! size.

use crate::link::shared::rings::RING_BYTES;
use crate::op::header::HEADER_BYTES;

/// Bytes that a step moves at most in one direction of a link, before it looks at the others.
pub(super) const STEP_BYTES: usize = RING_BYTES;

/// How far one direction of one link has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    /// This many bytes of the header are done.
    Header(usize),
    Payload,
    /// This many bytes of padding are left.
    Padding(usize),
    Done,
}

/// The padding after this many bytes of payload.
pub(super) fn padding(payload: u64) -> StreamState {
    StreamState::Padding((payload.wrapping_neg() % HEADER_BYTES as u64) as usize)
}
