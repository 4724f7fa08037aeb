//! The links of groups between processes.

use std::sync::Arc;

use super::caller::Caller;
use super::control;
use super::reception::{Arrival, Found};
use crate::error::{Error, Suspect, Verdict};
use crate::fabric::{Fabric, Pair, Unlinked, has_cores_for};
use crate::link::{Channel, Doorbell, Link, Segment, SharedLink, TcpLink, ring_bytes, segment_bytes};

/// A rank's way to the others.
pub(super) struct Network {
    pub(super) caller: Arc<Caller>,
    pub(super) control: Arc<control::Shared>,
}

impl Fabric for Network {
    fn enter(&self, group: u64, _: usize) -> Result<Arc<Doorbell>, Error> {
        self.caller.reception.doorbell(group)
    }

    fn leave(&self, group: u64, _: usize) {
        self.caller.reception.leave(group);
    }

    /// Who sends calls for a transfer, so that it waits for nothing that the receiver does. Of a collective, which both
    /// take part in, the higher rank calls.
    fn link(&self, pair: &Pair<'_>) -> Result<Option<Link>, Unlinked> {
        let Pair { group, rank, peer, channel, members, .. } = *pair;
        let purpose = (self.caller.table.world, group, peer, channel);
        let arrival = match self.caller.reception.find(&purpose) {
            Found::Arrival(arrival) => arrival,
            Found::First if channel == Channel::Outbound || channel == Channel::Collective && rank > peer => {
                self.caller.request(purpose, pair)?;
                return Ok(None);
            }
            Found::First | Found::Nothing => return Ok(None),
        };
        let shared = |segment, side, doorbell| {
            Link::Shared(SharedLink::new(Arc::new(segment), side, Arc::new(Doorbell::from_peer(doorbell))))
        };
        match arrival {
            Arrival::Tcp(stream) => Ok(Some(Link::Tcp(TcpLink::new(stream, ring_bytes(members))?))),
            Arrival::Memory { segment, doorbell } => {
                let segment = Segment::open(&segment, segment_bytes(members))?;
                Ok(Some(shared(segment, 0, doorbell)))
            }
            Arrival::Shared { segment, doorbell } => Ok(Some(shared(segment, 1, doorbell))),
            Arrival::Left => Err(Unlinked::Left),
            Arrival::Failed(error) => Err(Unlinked::Failed(error)),
        }
    }

    fn inquire(&self, _: usize) -> Verdict {
        self.control.inquire()
    }

    fn silent_hub(&self) -> Option<Suspect> {
        self.control.silent_hub()
    }

    fn has_core_per_rank(&self) -> bool {
        let places = &self.caller.table.places;
        let host = &places[self.caller.rank].host;
        has_cores_for(places.iter().filter(|place| place.host == *host).count())
    }
}
