//! Bytes between two ranks: one ordered, reliable stream in each direction, that never blocks.

mod doorbell;
mod segment;
mod shared;
mod tcp;
mod view;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::PollFlags;

pub(crate) use doorbell::Doorbell;
pub(crate) use segment::Segment;
pub(crate) use shared::{CHANNEL_BYTES, SharedLink};
pub(crate) use tcp::TcpLink;
pub(crate) use view::View;

/// Bytes of a stream that can be on their way between two ranks of one host. Small enough that the rings of a few
/// peers stay in a core's second-level cache.
pub(crate) const RING_BYTES: usize = 256 << 10;

/// Bytes after which a long write or read tells the peer what it has done so far, so that both copy at once.
const PUBLISH_BYTES: usize = 32 << 10;

/// Why a link cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The peer let go of it.
    Closed,
    /// The connection broke.
    Broken(String),
    /// What the peer wrote cannot be.
    Corrupt(&'static str),
}

/// One end of a link. Positions of both streams are multiples of the header size at the start of every message, so
/// that elements never lie across the end of a ring.
pub(crate) enum Link {
    Shared(SharedLink),
    Tcp(TcpLink),
}

macro_rules! each {
    ($link:expr, $inner:ident => $body:expr) => {
        match $link {
            Link::Shared($inner) => $body,
            Link::Tcp($inner) => $body,
        }
    };
}

impl Link {
    /// Takes bytes to send and says how many; 0 when the link is full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        each!(self, link => link.write(bytes))
    }

    /// Sends what was written; false when the link is too full for all of it.
    pub(crate) fn flush(&mut self) -> Result<bool, LinkError> {
        each!(self, link => link.flush())
    }

    /// Moves received bytes to `into` and says how many; 0 when there are none.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        each!(self, link => link.read(into))
    }

    /// Fetches what has arrived, so that [`peek`](Self::peek) shows it.
    pub(crate) fn fetch(&mut self) -> Result<(), LinkError> {
        each!(self, link => link.fetch())
    }

    /// The fetched bytes, as far as they lie together.
    pub(crate) fn peek(&self) -> View<'_> {
        match self {
            Link::Shared(link) => link.peek(),
            Link::Tcp(link) => link.peek().into(),
        }
    }

    /// Drops the first `count` fetched bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        each!(self, link => link.consume(count))
    }

    /// Asks the peer to ring this rank's doorbell from now on; bytes that came before must be looked for once more.
    pub(crate) fn arm(&mut self) {
        if let Link::Shared(link) = self {
            link.arm();
        }
    }

    /// Undoes [`arm`](Self::arm).
    pub(crate) fn disarm(&mut self) {
        if let Link::Shared(link) = self {
            link.disarm();
        }
    }

    /// What to poll in order to read or write more, where it is not the doorbell.
    pub(crate) fn poll_for(&self, read: bool, write: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Link::Shared(_) => None,
            Link::Tcp(link) => link.poll_for(read, write),
        }
    }
}

/// The links between two members of a group.
pub(crate) struct PeerLinks {
    /// For collectives.
    pub(crate) collective: Link,
    /// For transfers between the two alone.
    pub(crate) transfer: Link,
}

impl PeerLinks {
    /// Bytes of the segment behind [`shared`](Self::shared) links.
    pub(crate) const SEGMENT_BYTES: usize = 2 * CHANNEL_BYTES;

    /// Side `side` (0 or 1) of the links through a segment; `doorbell` is the other side's.
    pub(crate) fn shared(segment: Arc<Segment>, side: usize, doorbell: Arc<Doorbell>) -> Self {
        let link = |channel| Link::Shared(SharedLink::new(segment.clone(), channel, side, doorbell.clone()));
        Self { collective: link(0), transfer: link(1) }
    }
}

#[cfg(test)]
mod tests;
