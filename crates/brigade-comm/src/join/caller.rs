//! Calls other ranks for links, on threads of its own: a rank that is slow to answer holds up nobody who does not need it.

use std::collections::VecDeque;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::descriptors;
use super::handshake::{HandshakeError, Stream};
use super::message::{LinkHello, Message, Table, Use};
use super::reception::{Arrival, INTRODUCTION, Purpose, Reception};
use super::rendezvous::reach;
use super::token::Token;
use crate::error::Error;
use crate::fabric::Pair;
use crate::fault::Fault;
use crate::files::is_out_of_files;
use crate::link::{Channel, Segment, segment_bytes};
use crate::sync::lock;

/// Calls at the same time.
const MAX_CALLS: usize = 4;

/// What a rank knows about how to reach the others.
pub(super) struct Caller {
    pub(super) rank: usize,
    pub(super) table: Table,
    /// Rank 0's address, as this rank reached it.
    pub(super) hub: IpAddr,
    pub(super) token: Token,
    pub(super) reception: Arc<Reception>,
    pub(super) fault: Arc<Fault>,
    pub(super) wait: Duration,
    pub(super) calls: Mutex<Calls>,
}

/// Calls that are still to be made.
#[derive(Default)]
pub(super) struct Calls {
    waiting: VecDeque<Call>,
    threads: usize,
}

/// A call for a link.
struct Call {
    purpose: Purpose,
    name: String,
    members: usize,
}

/// Why a call brought no link.
enum Failed {
    Handshake(HandshakeError),
    Own(Error),
}

impl From<HandshakeError> for Failed {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Handshake(HandshakeError::Io(error))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

impl Caller {
    /// Calls a peer for a link; what comes of it goes to the reception.
    pub(super) fn request(self: &Arc<Self>, purpose: Purpose, pair: &Pair<'_>) -> Result<(), Error> {
        let mut calls = lock(&self.calls);
        calls.waiting.push_back(Call { purpose, name: pair.name.to_owned(), members: pair.members });
        if calls.threads < MAX_CALLS {
            let caller = self.clone();
            let thread =
                std::thread::Builder::new().name("brigade caller".into()).spawn(move || caller.run());
            match thread {
                Ok(_) => calls.threads += 1,
                Err(error) if calls.threads == 0 => return Err(Error::system("start a thread", error)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Makes calls until there are none left.
    fn run(&self) {
        loop {
            let mut calls = lock(&self.calls);
            let Some(call) = calls.waiting.pop_front() else {
                calls.threads -= 1;
                return;
            };
            drop(calls);
            let arrival = self.call(&call).unwrap_or_else(|failed| match failed {
                Failed::Own(error) => Arrival::Failed(error),
                Failed::Handshake(HandshakeError::Io(error)) if is_out_of_files(&error) => {
                    Arrival::Failed(Error::system("connect to another rank", error))
                }
                Failed::Handshake(error) => Arrival::Failed(Error::Connect {
                    group: call.name,
                    rank: self.rank,
                    peer: call.purpose.2,
                    waited: self.wait,
                    reason: error.to_string(),
                }),
            });
            if let Err(error) = self.reception.bring(call.purpose, arrival) {
                tracing::debug!(%error, "a link comes too late");
            }
        }
    }

    fn call(&self, call: &Call) -> Result<Arrival, Failed> {
        let (world, group, peer, channel) = call.purpose;
        let deadline = Instant::now() + self.wait;
        let mut stream = self.reach(peer, deadline)?;
        let r#use = if channel == Channel::Collective { Use::Collective } else { Use::Transfer };
        stream.send(&Message::Link(LinkHello { world, from: self.rank, group, r#use }), deadline)?;
        let stream = match stream {
            Stream::Tcp(stream) => return Ok(Arrival::Tcp(stream)),
            Stream::Unix(stream) => stream,
        };
        let (segment, file) = Segment::file(segment_bytes(call.members))?;
        descriptors::send(&stream, &[file.as_fd(), self.reception.doorbell(group)?.as_fd()])?;
        match descriptors::receive(&stream, deadline.min(Instant::now() + INTRODUCTION)) {
            Ok([doorbell]) => Ok(Arrival::Shared { segment, doorbell }),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(Arrival::Left),
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to a peer by the socket that the two have in common.
    fn reach(&self, peer: usize, deadline: Instant) -> Result<Stream, HandshakeError> {
        let place = &self.table.places[peer];
        let shares_memory = self.table.share_memory(self.rank, peer).map_err(HandshakeError::Stranger)?;
        let dial = |left| {
            if shares_memory {
                let address = SocketAddr::from_abstract_name(&place.socket)?;
                return UnixStream::connect_addr(&address).map(Stream::Unix);
            }
            let address = (place.address.unwrap_or(self.hub), place.port).into();
            TcpStream::connect_timeout(&address, left).map(Stream::Tcp)
        };
        let give_up = || self.fault.get().is_some() || self.reception.is_closing();
        reach(dial, &self.token, deadline, give_up)
    }
}
