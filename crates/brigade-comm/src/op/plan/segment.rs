//! Parts of the buffer that cross a link.

use std::ops::Range;

/// A part of the buffer that goes out on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outbound {
    pub(crate) range: Range<usize>,
    /// The segment may leave only as far as this rank's own slice is final: reduced, or received from the root.
    pub(crate) when_final: bool,
}

/// What becomes of a part of a link's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InboundUse {
    /// They fill the range.
    Fill,
    /// They fill the range of this rank's own slice, which makes it final as far as they reach.
    FillOwn,
    /// They fill the range, not before the same range has been sent on the same link.
    FillAfterSending,
    /// They are reduced into the range, together with those of all other peers.
    Reduce,
    /// As `Reduce`, not before the same range has been sent on the same link.
    ReduceAfterSending,
}

/// A part of a link's bytes, and the part of the buffer that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inbound {
    pub(crate) range: Range<usize>,
    pub(crate) purpose: InboundUse,
}

/// What comes next on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next<T> {
    Segment(T),
    /// Nothing before the next phase.
    Later,
    /// Nothing at all.
    End,
}

impl<T> From<Option<T>> for Next<T> {
    fn from(segment: Option<T>) -> Self {
        segment.map_or(Self::End, Self::Segment)
    }
}
