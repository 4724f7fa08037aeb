//! The links of groups between processes.

use std::sync::Arc;

use crate::error::{Diagnosis, Error, StalledRank};
use crate::join::control::thread::ControlPlane;
use crate::join::network::dialer::Dialer;
use crate::join::network::pending_links::{LinkLookup, LinkOutcome};
use crate::link::connector::{Connector, LinkSpec, LinkUnavailable, has_cores_for};
use crate::link::endpoint::Link;
use crate::link::role::LinkRole;
use crate::link::shared::event_fd::EventFd;
use crate::link::shared::rings::ring_bytes;
use crate::link::shared::segment::Segment;
use crate::link::shared::{SharedLink, segment_bytes};
use crate::link::tcp::TcpLink;

/// Connects a rank's groups to other processes.
pub(in crate::join) struct ProcessConnector {
    pub(in crate::join) dialer: Arc<Dialer>,
    pub(in crate::join) control: Arc<ControlPlane>,
}

impl Connector for ProcessConnector {
    fn join_group(&self, group: u64, _: usize) -> Result<Arc<EventFd>, Error> {
        self.dialer.acceptor.links.event_fd(group)
    }

    fn leave_group(&self, group: u64, _: usize) {
        self.dialer.acceptor.links.leave(group);
    }

    /// The sender connects for transfers, so that it does not depend on what the receiver does. For collectives, which both
    /// take part in, the higher rank connects.
    fn link(&self, link_spec: &LinkSpec<'_>) -> Result<Option<Link>, LinkUnavailable> {
        let LinkSpec { group, rank, peer, role, members, .. } = *link_spec;
        let key = (self.dialer.table.world, group, peer, role);
        let outcome = match self.dialer.acceptor.links.find(&key) {
            LinkLookup::Ready(outcome) => outcome,
            LinkLookup::Unrequested
                if role == LinkRole::Outbound || role == LinkRole::Collective && rank > peer =>
            {
                self.dialer.request(key, link_spec)?;
                return Ok(None);
            }
            LinkLookup::Unrequested | LinkLookup::Pending => return Ok(None),
        };
        let shared = |segment, side, event_fd| {
            Link::Shared(SharedLink::new(Arc::new(segment), side, Arc::new(EventFd::from_peer(event_fd))))
        };
        match outcome {
            LinkOutcome::Tcp(stream, session) => {
                let session = self.dialer.table.is_sealed(rank, peer).then_some(session);
                Ok(Some(Link::Tcp(TcpLink::new(stream, session, ring_bytes(members))?)))
            }
            LinkOutcome::Memory { segment, event_fd } => {
                let segment = Segment::open(&segment, segment_bytes(members))?;
                Ok(Some(shared(segment, 0, event_fd)))
            }
            LinkOutcome::Shared { segment, event_fd } => Ok(Some(shared(segment, 1, event_fd))),
            LinkOutcome::Left => Err(LinkUnavailable::Left),
            LinkOutcome::Failed(error) => Err(LinkUnavailable::Failed(error)),
        }
    }

    fn diagnose(&self, _: usize) -> Diagnosis {
        self.control.diagnose()
    }

    fn unresponsive_rank_0(&self) -> Option<StalledRank> {
        self.control.unresponsive_rank_0()
    }

    fn has_core_per_rank(&self) -> bool {
        let addresses = &self.dialer.table.addresses;
        let host = &addresses[self.dialer.rank].host;
        has_cores_for(addresses.iter().filter(|place| place.host == *host).count())
    }
}
