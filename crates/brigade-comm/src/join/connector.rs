//! The links of groups between processes.

use std::sync::Arc;

use super::acceptor::{LinkLookup, LinkOutcome};
use super::control;
use super::dialer::Dialer;
use crate::connector::{Connector, LinkSpec, LinkUnavailable, has_cores_for};
use crate::error::{Diagnosis, Error, StalledRank};
use crate::link::{Channel, EventFd, Link, Segment, SharedLink, TcpLink, ring_bytes, segment_bytes};

/// A rank's way to the others.
pub(super) struct ProcessConnector {
    pub(super) dialer: Arc<Dialer>,
    pub(super) control: Arc<control::Shared>,
}

impl Connector for ProcessConnector {
    fn join_group(&self, group: u64, _: usize) -> Result<Arc<EventFd>, Error> {
        self.dialer.acceptor.event_fd(group)
    }

    fn leave_group(&self, group: u64, _: usize) {
        self.dialer.acceptor.leave(group);
    }

    /// Who sends calls for a transfer, so that it waits for nothing that the receiver does. Of a collective, which both
    /// take part in, the higher rank calls.
    fn link(&self, link_spec: &LinkSpec<'_>) -> Result<Option<Link>, LinkUnavailable> {
        let LinkSpec { group, rank, peer, channel, members, .. } = *link_spec;
        let key = (self.dialer.table.world, group, peer, channel);
        let outcome = match self.dialer.acceptor.find(&key) {
            LinkLookup::Ready(outcome) => outcome,
            LinkLookup::Unrequested
                if channel == Channel::Outbound || channel == Channel::Collective && rank > peer =>
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
            LinkOutcome::Tcp(stream) => Ok(Some(Link::Tcp(TcpLink::new(stream, ring_bytes(members))?))),
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
