//! Connections for the links of groups, until their group asks for them.

use std::collections::{HashMap, HashSet};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::join::wire::handshake::HandshakeError;
use crate::join::wire::message::{LinkHello, LinkUse};
use crate::link::role::LinkRole;
use crate::link::shared::event_fd::EventFd;
use crate::link::shared::segment::Segment;
use crate::link::tcp::session::Session;
use crate::sync::lock;

/// Links that may wait for their group.
const MAX_WAITING: usize = 1 << 16;

/// The outcome of connecting to a peer, or of a peer's connection: what a link is made of, or why there is none.
pub(in crate::join) enum LinkOutcome {
    Tcp(TcpStream, Session),
    /// A peer's memory.
    Memory {
        segment: OwnedFd,
        event_fd: OwnedFd,
    },
    /// This rank's memory, which the peer has mapped as well.
    Shared {
        segment: Segment,
        event_fd: OwnedFd,
    },
    /// The peer has left the group.
    Left,
    /// The peer could not be reached.
    Failed(Error),
}

/// What a link is for: world, group, the peer's world rank, role.
pub(in crate::join) type LinkKey = (u64, u64, usize, LinkRole);

/// The answer to a request for a link.
pub(in crate::join) enum LinkLookup {
    Ready(LinkOutcome),
    /// It is expected.
    Pending,
    /// It has not been asked for before.
    Unrequested,
}

/// The groups that this rank is or will be in, and the connections for them.
#[derive(Default)]
struct Groups {
    event_fds: HashMap<u64, Arc<EventFd>>,
    left: HashSet<u64>,
    /// None where a link has been requested and has not come yet.
    links: HashMap<LinkKey, Option<LinkOutcome>>,
}

/// The connections for the links of all groups of this rank.
#[derive(Default)]
pub(in crate::join) struct PendingLinks(Mutex<Groups>);

impl PendingLinks {
    /// The event fd that wakes this rank in a group; created when the group is first mentioned.
    ///
    /// # Errors
    /// If this rank has left the group, or there are no descriptors.
    pub(in crate::join) fn event_fd(&self, group: u64) -> Result<Arc<EventFd>, Error> {
        let mut groups = lock(&self.0);
        if groups.left.contains(&group) {
            return Err(Error::System { what: "make a link", reason: "this rank has left its group".into() });
        }
        match groups.event_fds.get(&group) {
            Some(event_fd) => Ok(event_fd.clone()),
            None => {
                let event_fd = Arc::new(EventFd::new()?);
                groups.event_fds.insert(group, event_fd.clone());
                Ok(event_fd)
            }
        }
    }

    /// Makes no more links of a group.
    pub(in crate::join) fn leave(&self, group: u64) {
        let mut groups = lock(&self.0);
        groups.left.insert(group);
        groups.event_fds.remove(&group);
        groups.links.retain(|(_, of, ..), _| *of != group);
    }

    /// Stores the outcome for a link, and wakes the group.
    pub(in crate::join) fn store(&self, key: LinkKey, outcome: LinkOutcome) -> Result<(), HandshakeError> {
        let (_, group, ..) = key;
        let event_fd =
            self.event_fd(group).map_err(|error| HandshakeError::UnexpectedPeer(error.to_string()))?;
        let mut groups = lock(&self.0);
        if groups.left.contains(&group) {
            return Err(HandshakeError::UnexpectedPeer("this rank has left the link's group".into()));
        }
        if groups.links.len() >= MAX_WAITING {
            return Err(HandshakeError::UnexpectedPeer("too many links are waiting for their groups".into()));
        }
        groups.links.insert(key, Some(outcome));
        event_fd.notify();
        Ok(())
    }

    /// Takes the outcome for a link, if there is one.
    pub(in crate::join) fn find(&self, key: &LinkKey) -> LinkLookup {
        let mut groups = lock(&self.0);
        match groups.links.get_mut(key).map(Option::take) {
            Some(Some(outcome)) => {
                groups.links.remove(key);
                LinkLookup::Ready(outcome)
            }
            Some(None) => LinkLookup::Pending,
            None => {
                groups.links.insert(*key, None);
                LinkLookup::Unrequested
            }
        }
    }
}

/// The link that a peer's connection is for.
pub(in crate::join) fn key(LinkHello { world, from, group, r#use }: &LinkHello) -> LinkKey {
    let role = match r#use {
        LinkUse::Collective => LinkRole::Collective,
        LinkUse::Transfer => LinkRole::Inbound,
    };
    (*world, *group, *from, role)
}
