//! How far one operation has come in the incoming direction of one link.

use std::ops::Range;

use super::stream_state::padding;
use crate::link::endpoint::Link;
use crate::link::error::LinkError;
use crate::op::call::Call;
use crate::op::header::{HEADER_BYTES, decode};
use crate::op::plan::segment::{Inbound, InboundUse, Next};
use crate::progress::operation::stop::{Stop, StopReason};
use crate::progress::operation::stream_state::{STEP_BYTES, StreamState};

/// The incoming direction.
#[derive(Debug)]
pub(crate) struct Incoming {
    state: StreamState,
    segment: usize,
    offset: usize,
    payload: u64,
    starved: bool,
    /// Nothing is left before the plan's next phase.
    rests: bool,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self {
            state: StreamState::Header(0),
            segment: 0,
            offset: 0,
            payload: 0,
            starved: false,
            rests: false,
        }
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
            (self.segment, self.offset, self.rests) = (0, 0, false);
        }
    }

    /// Whether the peer's header has come.
    pub(crate) fn has_arrived(&self) -> bool {
        self.state != StreamState::Header(0)
    }

    /// Payload bytes used so far.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }

    /// Whether it stopped because the link was empty.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Looks for the header and compares it with this rank's call; returns the peer's call once it has arrived.
    pub(crate) fn read_header(
        &mut self,
        link: &mut Link,
        peer: usize,
        group: u64,
        ours: &Call,
    ) -> Result<Option<Call>, Stop> {
        self.starved = false;
        if self.has_arrived() {
            return Ok(None);
        }
        link.fetch().map_err(Stop::link(peer))?;
        let Some(header) = link.peek().snapshot() else {
            self.starved = true;
            return Ok(None);
        };
        let (their_group, theirs) =
            decode(&header).map_err(|text| Stop { peer, reason: StopReason::Header(text) })?;
        if their_group != group {
            let text = format!("a header belongs to group {their_group:#x}, but this group is {group:#x}");
            return Err(Stop { peer, reason: StopReason::Header(text) });
        }
        if !ours.accepts(&theirs) {
            return Err(Stop { peer, reason: StopReason::OtherCall(Box::new(theirs)) });
        }
        link.consume(HEADER_BYTES);
        self.state = StreamState::Payload;
        Ok(Some(theirs))
    }

    /// Moves bytes that fill parts of the buffer to their place; where what is there must be sent first, only as far as
    /// `sent`. Returns whether anything moved, and how far this rank's own slice has become final.
    pub(crate) fn fill(
        &mut self,
        link: &mut Link,
        bytes: &mut [u8],
        sent: usize,
        segments: impl Fn(usize) -> Next<Inbound>,
    ) -> Result<(bool, Option<usize>), LinkError> {
        let (mut moved, mut final_end) = (0, None);
        while let Some((range, purpose)) = self.current(&segments)
            && moved < STEP_BYTES
        {
            let end = match purpose {
                InboundUse::Fill | InboundUse::FillOwn => range.end,
                InboundUse::FillAfterSending => range.end.min(sent),
                InboundUse::Reduce | InboundUse::ReduceAfterSending => break,
            };
            if end <= range.start {
                break;
            }
            let count = link.read(&mut bytes[range.start..end.min(range.start + STEP_BYTES)])?;
            if count == 0 {
                self.starved = true;
                break;
            }
            moved += count;
            self.pass(count);
            if purpose == InboundUse::FillOwn {
                final_end = Some(range.start + count);
            }
        }
        Ok((self.skip_padding(link, &segments)? || moved > 0, final_end))
    }

    /// The part of the buffer that the peer's next whole elements are to be reduced into, as far as they have arrived
    /// and, where they must wait for sending, as far as `sent`.
    pub(crate) fn reducible(
        &mut self,
        link: &mut Link,
        sent: usize,
        element_bytes: usize,
        segments: impl Fn(usize) -> Next<Inbound>,
    ) -> Result<Option<Range<usize>>, LinkError> {
        let Some((range, purpose)) = self.current(&segments) else { return Ok(None) };
        let end = match purpose {
            InboundUse::Reduce => range.end,
            InboundUse::ReduceAfterSending => range.end.min(sent),
            _ => return Ok(None),
        };
        if end <= range.start {
            return Ok(None);
        }
        link.fetch()?;
        let whole = |bytes: usize| bytes - bytes % element_bytes;
        let (available, end) = (whole(link.peek().len()), range.start + whole(end - range.start));
        self.starved |= available == 0;
        Ok(Some(range.start..end.min(range.start + available)))
    }

    /// Notes that `count` bytes of the current segment have been used.
    pub(crate) fn pass(&mut self, count: usize) {
        self.offset += count;
        self.payload += count as u64;
    }

    /// What is left of the first segment that is not complete.
    fn current(&mut self, segments: impl Fn(usize) -> Next<Inbound>) -> Option<(Range<usize>, InboundUse)> {
        while self.state == StreamState::Payload {
            match segments(self.segment) {
                Next::End => self.state = padding(self.payload),
                Next::Later => {
                    self.rests = true;
                    return None;
                }
                Next::Segment(Inbound { range, .. }) if range.len() == self.offset => {
                    (self.segment, self.offset) = (self.segment + 1, 0);
                }
                Next::Segment(Inbound { range, purpose }) => {
                    return Some((range.start + self.offset..range.end, purpose));
                }
            }
        }
        None
    }

    fn skip_padding(
        &mut self,
        link: &mut Link,
        segments: impl Fn(usize) -> Next<Inbound>,
    ) -> Result<bool, LinkError> {
        if self.current(segments).is_some() {
            return Ok(false);
        }
        let mut moved = false;
        while let StreamState::Padding(left) = self.state {
            if left == 0 {
                self.state = StreamState::Done;
                return Ok(true);
            }
            link.fetch()?;
            let count = link.peek().len().min(left);
            if count == 0 {
                self.starved = true;
                break;
            }
            link.consume(count);
            self.state = StreamState::Padding(left - count);
            moved = true;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::link::shared::rings::RING_BYTES;
    use crate::link::tcp::TcpLink;
    use crate::op::call::OpType;
    use crate::op::dtype::DType;
    use crate::op::header::encode;

    #[test]
    fn a_part_of_an_element_leaves_a_reduction_starved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = Link::Tcp(TcpLink::new(listener.accept().unwrap().0, None, RING_BYTES).unwrap());
        let call = Call {
            operation: OpType::AllReduce,
            sequence: 0,
            dtype: DType::F32,
            reduce: None,
            root: None,
            bytes: 12,
        };
        let segment =
            |index| Next::from((index == 0).then_some(Inbound { range: 0..12, purpose: InboundUse::Reduce }));
        let mut incoming = Incoming::new();
        near.write_all(&encode(7, &call)).unwrap();
        while incoming.read_header(&mut link, 0, 7, &call).unwrap().is_none() {}
        near.write_all(&[1, 2, 3]).unwrap();
        while link.peek().len() == 0 {
            link.fetch().unwrap();
        }
        assert!(!incoming.is_starved());
        assert_eq!(incoming.reducible(&mut link, 0, 4, segment).unwrap(), Some(0..0));
        assert!(incoming.is_starved());
        near.write_all(&[4, 5, 6, 7]).unwrap();
        while link.peek().len() < 7 {
            link.fetch().unwrap();
        }
        assert_eq!(incoming.reducible(&mut link, 0, 4, segment).unwrap(), Some(0..4));
    }
}
