//! One end of a link of either kind, and the links to one peer.

use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use crate::link::error::LinkError;
use crate::link::role::LinkRole;
use crate::link::shared::SharedLink;
use crate::link::tcp::TcpLink;
use crate::op::view::View;

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
    /// Takes bytes to send and returns how many it took; 0 when the link is full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        each!(self, link => link.write(bytes))
    }

    /// Sends what was written; false when the link is too full for all of it.
    pub(crate) fn flush(&mut self) -> Result<bool, LinkError> {
        each!(self, link => link.flush())
    }

    /// Moves received bytes to `into` and returns how many; 0 when there are none.
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

    /// By how many bytes what is sent should exceed at most what has come back, where both directions carry about as much.
    pub(crate) fn lead(&self) -> usize {
        match self {
            // The ring is as long as it should be.
            Link::Shared(_) => usize::MAX,
            Link::Tcp(link) => link.lead(),
        }
    }

    /// Asks the peer to notify this rank from now on; look once more for bytes that came before.
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

    /// What to poll in order to read or write more, if it is not the event fd.
    pub(crate) fn poll_for(&self, read: bool, write: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match self {
            Link::Shared(_) => None,
            Link::Tcp(link) => link.poll_for(read, write),
        }
    }
}

/// The links to another member of a group, as far as they have been used.
#[derive(Default)]
pub(crate) struct PeerLinks {
    pub(crate) collective: Option<Link>,
    pub(crate) outbound: Option<Link>,
    pub(crate) inbound: Option<Link>,
}

impl PeerLinks {
    pub(crate) fn get_mut(&mut self, role: LinkRole) -> &mut Option<Link> {
        match role {
            LinkRole::Collective => &mut self.collective,
            LinkRole::Outbound => &mut self.outbound,
            LinkRole::Inbound => &mut self.inbound,
        }
    }

    /// The links that there are.
    pub(crate) fn each(&mut self) -> impl Iterator<Item = &mut Link> {
        [&mut self.collective, &mut self.outbound, &mut self.inbound].into_iter().flatten()
    }
}
