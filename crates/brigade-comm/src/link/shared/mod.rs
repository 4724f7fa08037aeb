//! A link through shared memory: two rings, and a way to wake the other side.
//!
//! Its segment of memory holds one page of control words and the rings of both directions. A ring has one writer,
//! who moves its head, and one reader, who moves its tail; both only grow, and head - tail bytes wait to be read.
//!
//! The peer may be another process, and nothing but these rules keeps it from writing anywhere at any time. So control
//! words are atomics whose values are checked, and bytes are reached through pointers and [`View`]s, never borrowed.

pub(crate) mod event_fd;
pub(crate) mod rings;
pub(crate) mod segment;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::link::error::LinkError;
use crate::link::shared::event_fd::EventFd;
use crate::link::shared::rings::{PUBLISH_BYTES, ring_bytes};
use crate::link::shared::segment::Segment;
use crate::op::view::View;

const CONTROL_BYTES: usize = 4096;
const LINE: usize = 128;

/// Bytes of the segment behind a link in a group of `members` ranks.
pub(crate) fn segment_bytes(members: usize) -> usize {
    CONTROL_BYTES + 2 * ring_bytes(members)
}

/// One side's end of a link.
pub(crate) struct SharedLink {
    segment: Arc<Segment>,
    ring_bytes: usize,
    /// After how many bytes positions are published to the peer.
    publish_bytes: usize,
    side: usize,
    event_fd: Arc<EventFd>,
    outbound: Position,
    inbound: Position,
}

/// This side's position in one ring.
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
    /// Takes side `side` (0 or 1) of a segment of [`segment_bytes`]. Each side is taken once, and `event_fd` is the one that
    /// the other side waits on.
    pub(crate) fn new(segment: Arc<Segment>, side: usize, event_fd: Arc<EventFd>) -> Self {
        assert!(side < 2 && segment.len() > CONTROL_BYTES);
        let ring_bytes = (segment.len() - CONTROL_BYTES) / 2;
        Self {
            segment,
            ring_bytes,
            publish_bytes: PUBLISH_BYTES.min(ring_bytes / 8),
            side,
            event_fd,
            outbound: Position::default(),
            inbound: Position::default(),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        let mut written = 0;
        while written < bytes.len() {
            let space = self.space()?;
            if space == 0 {
                break;
            }
            let offset = self.outbound.own as usize % self.ring_bytes;
            let count =
                (bytes.len() - written).min(space).min(self.ring_bytes - offset).min(self.publish_bytes);
            let part = &bytes[written..written + count];
            // SAFETY: the ring holds offset + count bytes at least, which no other thread of this process touches: a
            // reader does not before the head passes them, and `space` keeps the head at most one ring ahead of the tail.
            unsafe { self.ring(self.side).add(offset).copy_from_nonoverlapping(part.as_ptr(), count) };
            self.outbound.own += count as u64;
            written += count;
            if self.outbound.own - self.outbound.published >= self.publish_bytes as u64 {
                self.publish_head();
            }
        }
        Ok(written)
    }

    pub(crate) fn flush(&mut self) -> Result<bool, LinkError> {
        if self.outbound.own != self.outbound.published {
            self.publish_head();
        }
        if self.inbound.own != self.inbound.published {
            self.publish_tail();
        }
        Ok(true)
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let mut read = 0;
        while read < into.len() {
            self.fetch()?;
            let bytes = self.peek();
            let count = bytes.len().min(into.len() - read).min(self.publish_bytes);
            if count == 0 {
                break;
            }
            bytes.copy_to(&mut into[read..read + count]);
            self.consume(count);
            read += count;
        }
        Ok(read)
    }

    pub(crate) fn fetch(&mut self) -> Result<(), LinkError> {
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
        if head.wrapping_sub(self.inbound.own) > self.ring_bytes as u64 || head < self.inbound.peer {
            return Err(LinkError::Corrupt("a ring's head is out of bounds"));
        }
        self.inbound.peer = head;
        Ok(())
    }

    pub(crate) fn peek(&self) -> View<'_> {
        let offset = self.inbound.own as usize % self.ring_bytes;
        let available = self.inbound.peer.saturating_sub(self.inbound.own) as usize;
        // SAFETY: within the ring. `fetch` saw a head at most one ring ahead; a writer in this process leaves these bytes alone
        // until the tail passes them, which needs a mutable borrow of this link.
        unsafe { View::new(self.ring(1 - self.side).add(offset), available.min(self.ring_bytes - offset)) }
    }

    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.peek().len());
        self.inbound.own += count as u64;
        if self.inbound.own - self.inbound.published >= self.publish_bytes as u64 {
            self.publish_tail();
        }
    }

    pub(crate) fn arm(&mut self) {
        self.sleeping(self.side).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn disarm(&mut self) {
        self.sleeping(self.side).store(0, Ordering::Relaxed);
    }

    /// Bytes that can be written now.
    fn space(&mut self) -> Result<usize, LinkError> {
        let used = |position: &Position| position.own.wrapping_sub(position.peer);
        if used(&self.outbound) as usize + self.publish_bytes > self.ring_bytes {
            let tail = self.tail(self.side).load(Ordering::Acquire);
            if tail > self.outbound.published || tail < self.outbound.peer {
                return Err(LinkError::Corrupt("a ring's tail is out of bounds"));
            }
            self.outbound.peer = tail;
            if used(&self.outbound) as usize == self.ring_bytes
                && self.closed(1 - self.side).load(Ordering::Acquire) != 0
            {
                return Err(LinkError::Closed);
            }
        }
        Ok(self.ring_bytes - used(&self.outbound) as usize)
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

    /// Notifies the peer if it sleeps. The fences here and in `arm` make sure that either the peer sees what was just
    /// published, or this side sees that the peer is going to sleep.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        let sleeping = self.sleeping(1 - self.side);
        if sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0 {
            self.event_fd.notify();
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

    /// The control word at byte `offset`.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(align_of::<AtomicU64>()) && offset < CONTROL_BYTES);
        // SAFETY: the word lies within the first page of the segment (`new` checked that there is one), aligned, in
        // memory that lives as long as `self`. It is only accessed as this atomic, for which every value is valid.
        unsafe { &*self.segment.start().add(offset).cast() }
    }

    /// The first byte of the ring that `writer` writes.
    fn ring(&self, writer: usize) -> *mut u8 {
        assert!(writer < 2);
        // SAFETY: two rings and the control words are as long as the segment.
        unsafe { self.segment.start().add(CONTROL_BYTES + writer * self.ring_bytes) }
    }
}

impl Drop for SharedLink {
    fn drop(&mut self) {
        self.head(self.side).store(self.outbound.own, Ordering::Release);
        self.closed(self.side).store(1, Ordering::Release);
        self.event_fd.notify();
    }
}
