//! Makes the links of a group between processes.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::control;
use super::descriptors;
use super::handshake::{HandshakeError, Stream};
use super::message::{Channel, LinkHello, Message, Table};
use super::reception::{Arrival, Reception};
use super::rendezvous::reach;
use super::token::Token;
use crate::error::{Error, Suspect, Verdict};
use crate::fabric::{Fabric, Gathering, has_cores_for};
use crate::fault::Fault;
use crate::link::{Doorbell, Link, PeerLinks, Segment, TcpLink};

/// Between two looks at whether the world still stands.
const GLANCE: Duration = Duration::from_millis(100);

/// What a rank knows about how to reach the others.
pub(super) struct Network {
    pub(super) rank: usize,
    pub(super) table: Table,
    /// Rank 0's address, as this rank reached it.
    pub(super) hub: IpAddr,
    pub(super) token: Token,
    pub(super) reception: Arc<Reception>,
    pub(super) fault: Arc<Fault>,
    pub(super) control: Arc<control::Shared>,
    pub(super) wait: Duration,
}

/// A link whose other side has yet to give its doorbell.
struct Offered {
    stream: UnixStream,
    segment: Segment,
}

/// One pair's links, done or offered.
enum Half {
    Own,
    Whole(PeerLinks),
    Offered(Offered),
}

/// Why a pair could not be connected.
enum Failed {
    Handshake(HandshakeError),
    Own(Error),
}

impl From<HandshakeError> for Failed {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Handshake(HandshakeError::Io(error))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl Fabric for Network {
    /// Of each pair the higher rank calls and the lower one answers. All calls come first, then all answers, then
    /// what the answers brought, so that no rank waits for one that waits for it.
    fn connect(&self, gathering: &Gathering<'_>) -> Result<Vec<Option<PeerLinks>>, Error> {
        let Gathering { name, members, .. } = *gathering;
        let deadline = Instant::now() + self.wait;
        let explain = |peer: usize| {
            move |failed: Failed| {
                let reason = match failed {
                    Failed::Own(error) => return error,
                    Failed::Handshake(error) => error.to_string(),
                };
                let (group, rank, waited) = (name.into(), self.rank, self.wait);
                let error = Error::Connect { group, rank, peer, waited, reason };
                self.fault.error_for(self.rank).unwrap_or(error)
            }
        };
        let mut halves = Vec::new();
        for peer in members {
            halves.push(match peer.cmp(&self.rank) {
                std::cmp::Ordering::Less => self.call(gathering, *peer, deadline).map_err(explain(*peer))?,
                _ => Half::Own,
            });
        }
        for (half, peer) in halves.iter_mut().zip(members).filter(|(_, peer)| **peer > self.rank) {
            *half = Half::Whole(self.answer(gathering, *peer, deadline).map_err(explain(*peer))?);
        }
        let whole = halves.into_iter().zip(members).map(|(half, peer)| match half {
            Half::Own => Ok(None),
            Half::Whole(links) => Ok(Some(links)),
            Half::Offered(offered) => self.accepted(offered, deadline).map(Some).map_err(explain(*peer)),
        });
        whole.collect()
    }

    fn inquire(&self, _: usize) -> Verdict {
        self.control.inquire()
    }

    fn silent_hub(&self) -> Option<Suspect> {
        self.control.silent_hub()
    }

    fn has_core_per_rank(&self) -> bool {
        let host = &self.table.places[self.rank].host;
        has_cores_for(self.table.places.iter().filter(|place| place.host == *host).count())
    }
}

impl Network {
    fn shares_memory(&self, peer: usize) -> Result<bool, Failed> {
        self.table
            .share_memory(self.rank, peer)
            .map_err(|reason| Failed::Handshake(HandshakeError::Stranger(reason)))
    }

    fn call(&self, gathering: &Gathering<'_>, peer: usize, deadline: Instant) -> Result<Half, Failed> {
        if self.shares_memory(peer)? {
            let Stream::Unix(stream) = self.open(gathering, peer, Channel::Memory, deadline)? else {
                return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
            };
            let (segment, file) = Segment::file(PeerLinks::SEGMENT_BYTES)?;
            descriptors::send(&stream, &[file.as_fd(), gathering.doorbell.as_fd()])?;
            return Ok(Half::Offered(Offered { stream, segment }));
        }
        let link = |channel| match self.open(gathering, peer, channel, deadline)? {
            Stream::Tcp(stream) => Ok(Link::Tcp(TcpLink::new(stream)?)),
            Stream::Unix(_) => Err(Failed::from(io::Error::from(io::ErrorKind::InvalidInput))),
        };
        let (collective, transfer) = (link(Channel::Collective)?, link(Channel::Transfer)?);
        Ok(Half::Whole(PeerLinks { collective, transfer }))
    }

    fn answer(&self, gathering: &Gathering<'_>, peer: usize, deadline: Instant) -> Result<PeerLinks, Failed> {
        if self.shares_memory(peer)? {
            let Arrival::Memory { stream, segment, doorbell } =
                self.arrival(gathering, peer, Channel::Memory, deadline)?
            else {
                return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
            };
            let segment = Segment::open(&segment, PeerLinks::SEGMENT_BYTES)?;
            descriptors::send(&stream, &[gathering.doorbell.as_fd()])?;
            let doorbell = Doorbell::from_peer(doorbell);
            return Ok(PeerLinks::shared(Arc::new(segment), 0, Arc::new(doorbell)));
        }
        let link = |channel| match self.arrival(gathering, peer, channel, deadline)? {
            Arrival::Tcp(stream) => Ok(Link::Tcp(TcpLink::new(stream)?)),
            Arrival::Memory { .. } => Err(Failed::from(io::Error::from(io::ErrorKind::InvalidInput))),
        };
        Ok(PeerLinks { collective: link(Channel::Collective)?, transfer: link(Channel::Transfer)? })
    }

    fn accepted(&self, offered: Offered, deadline: Instant) -> Result<PeerLinks, Failed> {
        let Offered { stream, segment } = offered;
        let [doorbell] = loop {
            match descriptors::receive(&stream, (Instant::now() + GLANCE).min(deadline)) {
                Err(error) if waits(&error) && Instant::now() < deadline && self.fault.get().is_none() => {}
                outcome => break outcome?,
            }
        };
        let doorbell = Doorbell::from_peer(doorbell);
        Ok(PeerLinks::shared(Arc::new(segment), 1, Arc::new(doorbell)))
    }

    /// Calls a peer for a link.
    fn open(
        &self,
        gathering: &Gathering<'_>,
        peer: usize,
        channel: Channel,
        deadline: Instant,
    ) -> Result<Stream, Failed> {
        let place = &self.table.places[peer];
        let dial = |left| match channel {
            Channel::Memory => {
                let address = SocketAddr::from_abstract_name(&place.socket)?;
                UnixStream::connect_addr(&address).map(Stream::Unix)
            }
            _ => {
                let address = (place.address.unwrap_or(self.hub), place.port).into();
                TcpStream::connect_timeout(&address, left).map(Stream::Tcp)
            }
        };
        let mut stream = reach(dial, &self.token, deadline, || self.fault.get().is_some())?;
        let hello = LinkHello { world: self.table.world, from: self.rank, group: gathering.group, channel };
        stream.send(&Message::Link(hello), deadline)?;
        Ok(stream)
    }

    /// Waits for a peer's call.
    fn arrival(
        &self,
        gathering: &Gathering<'_>,
        peer: usize,
        channel: Channel,
        deadline: Instant,
    ) -> Result<Arrival, Failed> {
        let purpose = (self.table.world, gathering.group, peer, channel);
        loop {
            let glance = (Instant::now() + GLANCE).min(deadline);
            match self.reception.take(&purpose, glance) {
                Some(arrival) => return Ok(arrival),
                None if Instant::now() < deadline && self.fault.get().is_none() => {}
                None => return Err(io::Error::new(io::ErrorKind::TimedOut, "it did not come").into()),
            }
        }
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
