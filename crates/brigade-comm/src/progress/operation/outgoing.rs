//! How far one operation has come in the outgoing direction of one link.

use super::stream_state::padding;
use crate::link::endpoint::Link;
use crate::link::error::LinkError;
use crate::op::header::HEADER_BYTES;
use crate::op::plan::segment::{Next, Outbound};
use crate::progress::operation::stream_state::{STEP_BYTES, StreamState};

/// The outgoing direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    header: [u8; HEADER_BYTES],
    state: StreamState,
    segment: usize,
    offset: usize,
    payload: u64,
    blocked: bool,
    /// Nothing is left before the plan's next phase.
    rests: bool,
    frontier: usize,
}

impl Outgoing {
    pub(crate) fn new(header: [u8; HEADER_BYTES]) -> Self {
        let state = StreamState::Header(0);
        Self { header, state, segment: 0, offset: 0, payload: 0, blocked: false, rests: false, frontier: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == StreamState::Done
    }

    /// Whether nothing is left to do before the plan's next phase.
    pub(crate) fn rests(&self) -> bool {
        self.rests || self.is_done()
    }

    /// Moves on to the plan's next phase.
    pub(crate) fn next_stage(&mut self) {
        if matches!(self.state, StreamState::Header(_) | StreamState::Payload) {
            (self.segment, self.offset, self.frontier, self.rests) = (0, 0, 0, false);
        }
    }

    /// Whether it stopped because the link was full.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Payload bytes sent so far.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }

    /// The offset in the buffer up to which the first segment has been sent.
    pub(crate) fn frontier(&self) -> usize {
        self.frontier
    }

    /// Sends what the link accepts; of this rank's own slice, only what lies before `final_end`, and of the payload, only its
    /// first `limit` bytes. Returns whether anything moved.
    pub(crate) fn advance(
        &mut self,
        link: &mut Link,
        bytes: &[u8],
        final_end: usize,
        limit: u64,
        segments: impl Fn(usize) -> Next<Outbound>,
    ) -> Result<bool, LinkError> {
        let mut moved = 0;
        self.blocked = false;
        loop {
            let written = match self.state {
                StreamState::Header(done) => {
                    let written = link.write(&self.header[done..])?;
                    self.state = match done + written {
                        HEADER_BYTES => StreamState::Payload,
                        done => StreamState::Header(done),
                    };
                    written
                }
                StreamState::Payload => {
                    let Outbound { range, when_final } = match segments(self.segment) {
                        Next::Segment(segment) => segment,
                        Next::Later => {
                            self.frontier = usize::MAX;
                            self.rests = true;
                            return Ok(moved > 0);
                        }
                        Next::End => {
                            self.state = padding(self.payload);
                            self.frontier = usize::MAX;
                            continue;
                        }
                    };
                    let start = range.start + self.offset;
                    if start == range.end {
                        (self.segment, self.offset) = (self.segment + 1, 0);
                        continue;
                    }
                    let end = if when_final { range.end.min(final_end) } else { range.end };
                    let end = end.min(start.saturating_add(limit.saturating_sub(self.payload) as usize));
                    if end <= start || moved >= STEP_BYTES {
                        return Ok(moved > 0);
                    }
                    let written = link.write(&bytes[start..end.min(start + STEP_BYTES)])?;
                    self.offset += written;
                    self.payload += written as u64;
                    self.frontier = start + written;
                    written
                }
                StreamState::Padding(0) => {
                    self.state = StreamState::Done;
                    continue;
                }
                StreamState::Padding(left) => {
                    let written = link.write(&[0; HEADER_BYTES][..left])?;
                    self.state = StreamState::Padding(left - written);
                    written
                }
                StreamState::Done => return Ok(moved > 0),
            };
            if written == 0 {
                self.blocked = true;
                return Ok(moved > 0);
            }
            moved += written;
        }
    }
}
