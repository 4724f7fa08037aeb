//! A link through shared memory: two rings, and a way to wake the other side.
//!
//! A channel lies in memory as one page of control words and the rings of both directions. A ring has one writer,
//! who moves its head, and one reader, who moves its tail; both only grow, and head - tail bytes wait to be read.
//!
//! The peer may be another process, and nothing but these rules keeps it from writing anywhere at any time. So control
//! words are atomics whose values are checked, and bytes are reached through pointers and [`View`]s, never borrowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::doorbell::Doorbell;
use super::segment::Segment;
use super::view::View;
use super::{LinkError, PUBLISH_BYTES, RING_BYTES};

/// Bytes of one channel.
pub(crate) const CHANNEL_BYTES: usize = CONTROL_BYTES + 2 * RING_BYTES;

const CONTROL_BYTES: usize = 4096;
const LINE: usize = 128;

/// One side's end of a channel.
pub(crate) struct SharedLink {
    segment: Arc<Segment>,
    channel: usize,
    side: usize,
    doorbell: Arc<Doorbell>,
    outbound: Position,
    inbound: Position,
}

/// Where this side stands in one ring.
#[derive(Default)]
struct Position {
    /// This side's own end: the writer's head or the reader's tail.
    own: u64,
    /// The part of it that the peer knows.
    published: u64,
    /// The peer's end when it was last looked at.
    peer: u64,
}

impl SharedLink {
    /// Takes side `side` (0 or 1) of channel `channel` of a segment. Each side of a channel is taken once, and
    /// `doorbell` is the one that the other side waits on.
    pub(crate) fn new(segment: Arc<Segment>, channel: usize, side: usize, doorbell: Arc<Doorbell>) -> Self {
        assert!(side < 2 && (channel + 1) * CHANNEL_BYTES <= segment.len());
        Self {
            segment,
            channel: channel * CHANNEL_BYTES,
            side,
            doorbell,
            outbound: Position::default(),
            inbound: Position::default(),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let mut written = 0;
        while written < bytes.len() {
            let space = self.space()?;
            if space == 0 {
                break;
            }
            let offset = self.outbound.own as usize % RING_BYTES;
            let count = (bytes.len() - written).min(space).min(RING_BYTES - offset).min(PUBLISH_BYTES);
            let part = &bytes[written..written + count];
            // SAFETY: the ring holds offset + count ≤ RING_BYTES bytes, which no other thread of this process touches: a
            // reader does not before the head passes them, and `space` keeps the head at most one ring ahead of the tail.
            unsafe { self.ring(self.side).add(offset).copy_from_nonoverlapping(part.as_ptr(), count) };
            self.outbound.own += count as u64;
            written += count;
            if self.outbound.own - self.outbound.published >= PUBLISH_BYTES as u64 {
                self.publish_head();
            }
        }
        Ok(written)
    }

    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        if self.outbound.own != self.outbound.published {
            self.publish_head();
        }
        if self.inbound.own != self.inbound.published {
            self.publish_tail();
        }
        Ok(true)
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let mut read = 0;
        while read < into.len() {
            self.fetch()?;
            let bytes = self.peek();
            let count = bytes.len().min(into.len() - read).min(PUBLISH_BYTES);
            if count == 0 {
                break;
            }
            bytes.copy_to(&mut into[read..read + count]);
            self.consume(count);
            read += count;
        }
        Ok(read)
    }

    pub(super) fn fetch(&mut self) -> Result<(), LinkError> {
        let mut head = self.head(1 - self.side).load(Ordering::Acquire);
        if head == self.inbound.own {
            if self.closed(1 - self.side).load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            // The peer writes its last bytes before it closes.
            head = self.head(1 - self.side).load(Ordering::Acquire);
            if head == self.inbound.own {
                return Err(LinkError::Closed);
            }
        }
        if head.wrapping_sub(self.inbound.own) > RING_BYTES as u64 || head < self.inbound.peer {
            return Err(LinkError::Corrupt("a ring's head is out of bounds"));
        }
        self.inbound.peer = head;
        Ok(())
    }

    pub(super) fn peek(&self) -> View<'_> {
        let offset = self.inbound.own as usize % RING_BYTES;
        let available = self.inbound.peer.saturating_sub(self.inbound.own) as usize;
        // SAFETY: within the ring. `fetch` saw a head at most one ring ahead; a writer in this process leaves these bytes alone
        // until the tail passes them, which needs a mutable borrow of this link.
        unsafe { View::new(self.ring(1 - self.side).add(offset), available.min(RING_BYTES - offset)) }
    }

    pub(super) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.peek().len());
        self.inbound.own += count as u64;
        if self.inbound.own - self.inbound.published >= PUBLISH_BYTES as u64 {
            self.publish_tail();
        }
    }

    pub(super) fn arm(&mut self) {
        self.sleeping(self.side).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(super) fn disarm(&mut self) {
        self.sleeping(self.side).store(0, Ordering::Relaxed);
    }

    /// Bytes that can be written now.
    fn space(&mut self) -> Result<usize, LinkError> {
        let used = |position: &Position| position.own.wrapping_sub(position.peer);
        if used(&self.outbound) as usize + PUBLISH_BYTES > RING_BYTES {
            let tail = self.tail(self.side).load(Ordering::Acquire);
            if tail > self.outbound.published || tail < self.outbound.peer {
                return Err(LinkError::Corrupt("a ring's tail is out of bounds"));
            }
            self.outbound.peer = tail;
            if used(&self.outbound) as usize == RING_BYTES
                && self.closed(1 - self.side).load(Ordering::Acquire) != 0
            {
                return Err(LinkError::Closed);
            }
        }
        Ok(RING_BYTES - used(&self.outbound) as usize)
    }

    fn publish_head(&mut self) {
        self.head(self.side).store(self.outbound.own, Ordering::Release);
        self.outbound.published = self.outbound.own;
        self.wake();
    }

    fn publish_tail(&mut self) {
        self.tail(1 - self.side).store(self.inbound.own, Ordering::Release);
        self.inbound.published = self.inbound.own;
        self.wake();
    }

    /// Rings if the peer sleeps. The fences here and in `arm` make sure that either the peer sees what was just
    /// published, or this side sees that the peer is going to sleep.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        let sleeping = self.sleeping(1 - self.side);
        if sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0 {
            self.doorbell.ring();
        }
    }

    fn sleeping(&self, side: usize) -> &AtomicU64 {
        self.word(side * LINE)
    }

    fn closed(&self, side: usize) -> &AtomicU64 {
        self.word(side * LINE + size_of::<AtomicU64>())
    }

    /// The head of the ring that `writer` writes.
    fn head(&self, writer: usize) -> &AtomicU64 {
        self.word((2 + 2 * writer) * LINE)
    }

    /// The tail of the ring that `writer` writes.
    fn tail(&self, writer: usize) -> &AtomicU64 {
        self.word((3 + 2 * writer) * LINE)
    }

    /// The control word at byte `offset` of the channel.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()) && offset < CONTROL_BYTES);
        // SAFETY: the word lies within the first page of the channel (`new` checked that it is in the segment), aligned, in
        // memory that lives as long as `self`. It is only accessed as this atomic, for which every value is valid.
        unsafe { &*self.segment.start().add(self.channel + offset).cast() }
    }

    /// The first of the [`RING_BYTES`] that `writer` writes.
    fn ring(&self, writer: usize) -> *mut u8 {
        assert!(writer < 2);
        // SAFETY: `new` checked that the whole channel lies in the segment.
        unsafe { self.segment.start().add(self.channel + CONTROL_BYTES + writer * RING_BYTES) }
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        self.head(self.side).store(self.outbound.own, Ordering::Release);
        self.closed(self.side).store(1, Ordering::Release);
        self.doorbell.ring();
    }
}
