//! How far one operation has come in each direction of one link.
//!
//! The bytes of an operation on a link: a header, the segments of its plan, and zeros up to a multiple of the
//! header's size.

use std::ops::Range;

use crate::call::{Call, HEADER_BYTES, decode};
use crate::link::{Link, LinkError};
use crate::plan::{Inbound, Next, Outbound, Use};

/// Bytes that a step moves at most in one direction of a link, before it looks at the others.
pub(crate) const STEP_BYTES: usize = 64 << 10;

/// Why an operation cannot go on, and because of which rank of the group.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// This many bytes of the header are done.
    Header(usize),
    Payload,
    /// This many bytes of padding are left.
    Padding(usize),
    Done,
}

fn padding(payload: u64) -> Stage {
    Stage::Padding((payload.wrapping_neg() % HEADER_BYTES as u64) as usize)
}

/// The outgoing direction.
#[derive(Debug)]
pub(crate) struct Outgoing {
    header: [u8; HEADER_BYTES],
    stage: Stage,
    segment: usize,
    offset: usize,
    payload: u64,
    blocked: bool,
    /// Nothing is left before the plan's next stage.
    rests: bool,
    frontier: usize,
}

impl Outgoing {
    pub(crate) fn new(header: [u8; HEADER_BYTES]) -> Self {
        let stage = Stage::Header(0);
        Self { header, stage, segment: 0, offset: 0, payload: 0, blocked: false, rests: false, frontier: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Whether nothing is left to do before the plan's next stage.
    pub(crate) fn rests(&self) -> bool {
        self.rests || self.is_done()
    }

    /// Turns to the plan's next stage.
    pub(crate) fn next_stage(&mut self) {
        if matches!(self.stage, Stage::Header(_) | Stage::Payload) {
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

    /// Sends what the link takes, and of the own slice only what lies before `final_end`. Says whether anything moved.
    pub(crate) fn advance(
        &mut self,
        link: &mut Link,
        bytes: &[u8],
        final_end: usize,
        segments: impl Fn(usize) -> Next<Outbound>,
    ) -> Result<bool, LinkError> {
        let mut moved = 0;
        self.blocked = false;
        loop {
            let written = match self.stage {
                Stage::Header(done) => {
                    let written = link.write(&self.header[done..])?;
                    self.stage = match done + written {
                        HEADER_BYTES => Stage::Payload,
                        done => Stage::Header(done),
                    };
                    written
                }
                Stage::Payload => {
                    let Outbound { range, when_final } = match segments(self.segment) {
                        Next::Segment(segment) => segment,
                        Next::Later => {
                            self.frontier = usize::MAX;
                            self.rests = true;
                            return Ok(moved > 0);
                        }
                        Next::End => {
                            self.stage = padding(self.payload);
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
                    if end <= start || moved >= STEP_BYTES {
                        return Ok(moved > 0);
                    }
                    let written = link.write(&bytes[start..end.min(start + STEP_BYTES)])?;
                    self.offset += written;
                    self.payload += written as u64;
                    self.frontier = start + written;
                    written
                }
                Stage::Padding(0) => {
                    self.stage = Stage::Done;
                    continue;
                }
                Stage::Padding(left) => {
                    let written = link.write(&[0; HEADER_BYTES][..left])?;
                    self.stage = Stage::Padding(left - written);
                    written
                }
                Stage::Done => return Ok(moved > 0),
            };
            if written == 0 {
                self.blocked = true;
                return Ok(moved > 0);
            }
            moved += written;
        }
    }
}

/// The incoming direction.
#[derive(Debug)]
pub(crate) struct Incoming {
    stage: Stage,
    segment: usize,
    offset: usize,
    payload: u64,
    starved: bool,
    /// Nothing is left before the plan's next stage.
    rests: bool,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { stage: Stage::Header(0), segment: 0, offset: 0, payload: 0, starved: false, rests: false }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Whether nothing is left to do before the plan's next stage.
    pub(crate) fn rests(&self) -> bool {
        self.rests || self.is_done()
    }

    /// Turns to the plan's next stage.
    pub(crate) fn next_stage(&mut self) {
        if matches!(self.stage, Stage::Header(_) | Stage::Payload) {
            (self.segment, self.offset, self.rests) = (0, 0, false);
        }
    }

    /// Whether the peer's header has come.
    pub(crate) fn has_arrived(&self) -> bool {
        self.stage != Stage::Header(0)
    }

    /// Payload bytes used so far.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }

    /// Whether it stopped because the link was empty.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// Looks for the header and compares it with this rank's call; gives the peer's call when it comes.
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
            let text = format!("a header is of group {their_group:#x}, this group is {group:#x}");
            return Err(Stop { peer, reason: StopReason::Header(text) });
        }
        if !ours.accepts(&theirs) {
            return Err(Stop { peer, reason: StopReason::OtherCall(Box::new(theirs)) });
        }
        link.consume(HEADER_BYTES);
        self.stage = Stage::Payload;
        Ok(Some(theirs))
    }

    /// Moves bytes that fill parts of the buffer to their place, where they must wait for sending only before `sent`.
    /// Says whether anything moved, and up to where the own slice became final.
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
                Use::Fill | Use::FillOwn => range.end,
                Use::FillAfterSending => range.end.min(sent),
                Use::Reduce | Use::ReduceAfterSending => break,
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
            if purpose == Use::FillOwn {
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
            Use::Reduce => range.end,
            Use::ReduceAfterSending => range.end.min(sent),
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
    fn current(&mut self, segments: impl Fn(usize) -> Next<Inbound>) -> Option<(Range<usize>, Use)> {
        while self.stage == Stage::Payload {
            match segments(self.segment) {
                Next::End => self.stage = padding(self.payload),
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
        while let Stage::Padding(left) = self.stage {
            if left == 0 {
                self.stage = Stage::Done;
                return Ok(true);
            }
            link.fetch()?;
            let count = link.peek().len().min(left);
            if count == 0 {
                self.starved = true;
                break;
            }
            link.consume(count);
            self.stage = Stage::Padding(left - count);
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
    use crate::call::{OpType, encode};
    use crate::dtype::DType;
    use crate::link::{RING_BYTES, TcpLink};

    #[test]
    fn a_part_of_an_element_leaves_a_reduction_starved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = Link::Tcp(TcpLink::new(listener.accept().unwrap().0, RING_BYTES).unwrap());
        let call = Call {
            operation: OpType::AllReduce,
            sequence: 0,
            dtype: DType::F32,
            reduce: None,
            root: None,
            bytes: 12,
        };
        let segment =
            |index| Next::from((index == 0).then_some(Inbound { range: 0..12, purpose: Use::Reduce }));
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
