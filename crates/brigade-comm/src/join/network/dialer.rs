//! Connects to other ranks for links, on threads of its own: a rank that is slow to answer holds up only what needs it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::{self, IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::error::Error;
use crate::fault::Fault;
use crate::join::interfaces::{Interfaces, OPTION};
use crate::join::network::acceptor::Acceptor;
use crate::join::network::descriptors;
use crate::join::network::pending_links::{LinkKey, LinkOutcome};
use crate::join::wire::auth_token::AuthToken;
use crate::join::wire::handshake::{HandshakeError, SecureStream, Stream};
use crate::join::wire::message::{LinkHello, LinkUse, Message, RankTable};
use crate::join::wire::reach::reach;
use crate::link::connector::LinkSpec;
use crate::link::role::LinkRole;
use crate::link::shared::segment::Segment;
use crate::link::shared::segment_bytes;
use crate::open_files::is_out_of_files;
use crate::sync::lock;

/// Connection attempts at the same time.
const MAX_DIALS: usize = 4;

/// Connects to other ranks, by what this rank knows about them.
pub(in crate::join) struct Dialer {
    pub(in crate::join) rank: usize,
    pub(in crate::join) table: RankTable,
    /// Rank 0's address, as seen from this rank.
    pub(in crate::join) rank_0: IpAddr,
    /// From where this rank connects, if that is chosen.
    pub(in crate::join) interfaces: Option<Interfaces>,
    pub(in crate::join) token: AuthToken,
    pub(in crate::join) acceptor: Arc<Acceptor>,
    pub(in crate::join) fault: Arc<Fault>,
    /// How long a connection may take, and how long an address may not answer at all.
    pub(in crate::join) wait: Duration,
    pub(in crate::join) unreachable: Duration,
    pub(in crate::join) queue: Mutex<DialQueue>,
}

/// Connections that are still to be made.
#[derive(Default)]
pub(in crate::join) struct DialQueue {
    waiting: VecDeque<DialRequest>,
    threads: usize,
}

/// A request to connect to a peer for a link.
struct DialRequest {
    key: LinkKey,
    name: String,
    members: usize,
}

/// Why there is no connection.
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

impl Dialer {
    /// Connects to a peer for a link, in the background; the outcome goes to the pending links.
    pub(in crate::join) fn request(
        self: &Arc<Self>,
        key: LinkKey,
        link_spec: &LinkSpec<'_>,
    ) -> Result<(), Error> {
        let mut queue = lock(&self.queue);
        queue.waiting.push_back(DialRequest {
            key,
            name: link_spec.name.to_owned(),
            members: link_spec.members,
        });
        if queue.threads < MAX_DIALS {
            let dialer = self.clone();
            let thread =
                std::thread::Builder::new().name("brigade dialer".into()).spawn(move || dialer.run());
            match thread {
                Ok(_) => queue.threads += 1,
                Err(error) if queue.threads == 0 => return Err(Error::system("start a thread", error)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Connects until the queue is empty.
    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Some(dial) = queue.waiting.pop_front() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            let begin = Instant::now();
            let arrival = self.dial(&dial).unwrap_or_else(|failed| match failed {
                Failed::Own(error) => LinkOutcome::Failed(error),
                Failed::Handshake(HandshakeError::Io(error)) if is_out_of_files(&error) => {
                    LinkOutcome::Failed(Error::system("connect to another rank", error))
                }
                Failed::Handshake(error) => LinkOutcome::Failed(Error::Connect {
                    group: dial.name,
                    rank: self.rank,
                    peer: dial.key.2,
                    waited: Duration::from_millis(begin.elapsed().as_millis() as u64),
                    reason: format!("{}{error}", self.way(dial.key.2)),
                }),
            });
            if let Err(error) = self.acceptor.links.store(dial.key, arrival) {
                tracing::debug!(%error, "a link comes too late");
            }
        }
    }

    fn dial(&self, dial: &DialRequest) -> Result<LinkOutcome, Failed> {
        let (world, group, peer, role) = dial.key;
        let deadline = Instant::now() + self.wait;
        let mut stream = self.reach(peer, deadline)?;
        let r#use = if role == LinkRole::Collective { LinkUse::Collective } else { LinkUse::Transfer };
        stream.send(&Message::Link(LinkHello { world, from: self.rank, group, r#use }), deadline)?;
        let stream = match stream.into_parts() {
            (Stream::Tcp(stream), session) => return Ok(LinkOutcome::Tcp(stream, session)),
            (Stream::Unix(stream), _) => stream,
        };
        let (segment, file) = Segment::file(segment_bytes(dial.members))?;
        descriptors::send(&stream, &[file.as_fd(), self.acceptor.links.event_fd(group)?.as_fd()])?;
        match descriptors::receive(&stream, deadline) {
            Ok([event_fd]) => Ok(LinkOutcome::Shared { segment, event_fd }),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(LinkOutcome::Left),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to a peer by the socket that the two have in common.
    fn reach(&self, peer: usize, deadline: Instant) -> Result<SecureStream, HandshakeError> {
        let place = &self.table.addresses[peer];
        let shares_memory =
            self.table.share_memory(self.rank, peer).map_err(HandshakeError::UnexpectedPeer)?;
        let (begin, answered) = (Instant::now(), Cell::new(false));
        let dial = |left: Duration| {
            if shares_memory {
                let address = SocketAddr::from_abstract_name(&place.socket)?;
                return UnixStream::connect_addr(&address).map(Stream::Unix);
            }
            let (address, source) = self.addresses(peer);
            let stream = connect(address, source, left.min(self.unreachable))?;
            answered.set(true);
            Ok(Stream::Tcp(stream))
        };
        let give_up = || {
            let is_unreachable = !shares_memory && !answered.get() && begin.elapsed() >= self.unreachable;
            is_unreachable || self.fault.get().is_some() || self.acceptor.is_closing()
        };
        reach(dial, &self.token, deadline, give_up)
    }

    /// Where a peer is reached over TCP, and from where if that is chosen.
    fn addresses(&self, peer: usize) -> (net::SocketAddr, Option<IpAddr>) {
        let place = &self.table.addresses[peer];
        let address = place.address.unwrap_or(self.rank_0);
        ((address, place.port).into(), self.interfaces.as_ref().map(|interfaces| interfaces.towards(address)))
    }

    /// The same in words, at the beginning of a reason.
    fn way(&self, peer: usize) -> String {
        if self.table.share_memory(self.rank, peer) != Ok(false) {
            return String::new();
        }
        match self.addresses(peer) {
            (address, Some(source)) => format!("{address}, from {source} ({OPTION}): "),
            (address, None) => format!("{address}: "),
        }
    }
}

/// Connects to an address, from another one if one is given.
fn connect(address: net::SocketAddr, source: Option<IpAddr>, wait: Duration) -> io::Result<TcpStream> {
    let Some(source) = source else { return TcpStream::connect_timeout(&address, wait) };
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.bind(&net::SocketAddr::from((source, 0)).into())?;
    socket.connect_timeout(&address.into(), wait)?;
    Ok(socket.into())
}
