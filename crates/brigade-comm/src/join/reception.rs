//! Takes in connections: those of ranks that join, and those that become links.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::descriptors;
use super::handshake::{HandshakeError, Stream, answer};
use super::message::{Hello, LinkHello, MAX_WORLD_SIZE, Message, Use};
use super::token::{Token, random};
use crate::error::Error;
use crate::fault::Fault;
use crate::files::is_out_of_files;
use crate::link::{Channel, Doorbell, Segment};
use crate::sync::lock;

/// How long a connection may take to say who it is.
pub(super) const INTRODUCTION: Duration = Duration::from_secs(10);

/// Connections that may be saying who they are at the same time. More are closed, and try again.
const MAX_INTRODUCTIONS: usize = 256;

/// Connections that may wait to be taken in. All ranks may call at once; who finds no place tries again a second later.
const BACKLOG: i32 = MAX_WORLD_SIZE as i32;

/// How long after a connection could not be taken in the next try comes.
const BACK_OFF: Duration = Duration::from_millis(50);

/// How long there may be no descriptors for connections, before the world fails: strangers, and other parts of the program,
/// may hold some for a moment.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Links that may wait for their group.
const MAX_WAITING: usize = 1 << 16;

/// A rank that wants to join, and its address.
pub(super) struct Joiner {
    pub(super) hello: Hello,
    pub(super) stream: Stream,
    pub(super) address: IpAddr,
}

/// What a link can be made of.
pub(super) enum Arrival {
    Tcp(TcpStream),
    /// A peer's memory.
    Memory {
        segment: OwnedFd,
        doorbell: OwnedFd,
    },
    /// Memory of this rank, which the peer has taken as well.
    Shared {
        segment: Segment,
        doorbell: OwnedFd,
    },
    /// The peer was called and has let go of the group.
    Left,
    /// The peer could not be called.
    Failed(Error),
}

/// What a link is for: world, group, the peer's world rank, channel.
pub(super) type Purpose = (u64, u64, usize, Channel);

/// A look for a link.
pub(super) enum Found {
    Arrival(Arrival),
    /// It is expected.
    Nothing,
    /// It has not been asked for before.
    First,
}

/// The groups that this rank is or will be in, and what has come for them.
#[derive(Default)]
struct Groups {
    doorbells: HashMap<u64, Arc<Doorbell>>,
    left: HashSet<u64>,
    /// Nothing where a link is awaited.
    links: HashMap<Purpose, Option<Arrival>>,
}

/// Where connections wait until they are asked for.
pub(super) struct Reception {
    token: Token,
    groups: Mutex<Groups>,
    /// Where ranks that join are taken, on rank 0 until the world is complete.
    joiners: Mutex<Option<Sender<Result<Joiner, Error>>>>,
    rank: usize,
    fault: Arc<Fault>,
    introductions: AtomicUsize,
    refused: AtomicUsize,
    closing: AtomicBool,
    doorbell: Doorbell,
}

/// The threads behind a reception; they end when it is dropped.
pub(super) struct Receptionist {
    pub(super) reception: Arc<Reception>,
    /// The TCP port.
    pub(super) port: u16,
    /// The name of the abstract Unix socket.
    pub(super) socket: String,
    thread: Option<JoinHandle<()>>,
}

impl Receptionist {
    /// Starts to take in connections on a bound listener and on a Unix socket of its own.
    pub(super) fn start(
        rank: usize,
        listener: TcpListener,
        token: Token,
        joiners: Option<Sender<Result<Joiner, Error>>>,
        fault: Arc<Fault>,
    ) -> Result<Self, Error> {
        let failed = |what| move |error: io::Error| Error::system(what, error);
        let name: [u8; 16] = random()?;
        let socket = format!("brigade-{:032x}", u128::from_ne_bytes(name));
        let port = listener.local_addr().map_err(failed("find the port of a listener"))?.port();
        let local = SocketAddr::from_abstract_name(&socket)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(failed("listen on a Unix socket"))?;
        listener
            .set_nonblocking(true)
            .and_then(|()| local.set_nonblocking(true))
            .and_then(|()| Ok(rustix::net::listen(&listener, BACKLOG)?))
            .and_then(|()| Ok(rustix::net::listen(&local, BACKLOG)?))
            .map_err(failed("set up a listener"))?;
        let reception = Arc::new(Reception {
            token,
            groups: Mutex::default(),
            joiners: Mutex::new(joiners),
            rank,
            fault,
            introductions: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            doorbell: Doorbell::new()?,
        });
        let thread = std::thread::Builder::new()
            .name("brigade reception".into())
            .spawn({
                let reception = reception.clone();
                move || reception.run(&listener, &local)
            })
            .map_err(failed("start a thread"))?;
        Ok(Self { reception, port, socket, thread: Some(thread) })
    }
}

impl Drop for Receptionist {
    fn drop(&mut self) {
        self.reception.closing.store(true, Ordering::Release);
        self.reception.doorbell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Reception {
    fn run(self: &Arc<Self>, listener: &TcpListener, local: &UnixListener) {
        let listeners = [(listener.as_fd(), PollFlags::IN), (local.as_fd(), PollFlags::IN)];
        let mut refused_since = None;
        while !self.closing.load(Ordering::Acquire) {
            self.doorbell.wait(&listeners, Duration::from_secs(1));
            match self.take_in(listener, local) {
                Ok(()) => refused_since = None,
                Err(error) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    if is_out_of_files(&error) && since.elapsed() >= SHORTAGE {
                        self.fail(Error::system("take in another rank's connection", error));
                    }
                    // The listeners stay readable: without a pause this would be a busy loop.
                    self.doorbell.wait(&[], BACK_OFF);
                }
            }
        }
    }

    /// Takes in whoever waits, until nobody does.
    fn take_in(self: &Arc<Self>, listener: &TcpListener, local: &UnixListener) -> io::Result<()> {
        let till_nobody_waits = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        };
        let remote = loop {
            match listener.accept() {
                Ok((stream, address)) => {
                    self.introduce(Stream::Tcp(stream), address.ip().to_canonical());
                }
                Err(error) => break till_nobody_waits(error),
            }
        };
        loop {
            match local.accept() {
                Ok((stream, _)) => {
                    // Another user can find the socket, but not use it.
                    let own = rustix::process::getuid();
                    if rustix::net::sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid == own) {
                        self.introduce(Stream::Unix(stream), IpAddr::from([127, 0, 0, 1]));
                    }
                }
                Err(error) => break till_nobody_waits(error).and(remote),
            }
        }
    }

    /// No connection can be taken in any more: tells who waits for one, or the world.
    fn fail(&self, error: Error) {
        if let Some(joiners) = lock(&self.joiners).take() {
            // Rank 0 has given up waiting.
            let _ = joiners.send(Err(error.clone()));
        }
        self.fault.raise(self.rank, error);
    }

    /// Hears a connection on a thread of its own, so that none can hold up the others.
    fn introduce(self: &Arc<Self>, stream: Stream, address: IpAddr) {
        if self.introductions.fetch_add(1, Ordering::Relaxed) < MAX_INTRODUCTIONS {
            let reception = self.clone();
            let hear = move || {
                let outcome = reception.hear(stream, address);
                if let Err(HandshakeError::Token) = outcome {
                    reception.refused.fetch_add(1, Ordering::Relaxed);
                }
                if let Err(error) = outcome {
                    tracing::debug!(%address, %error, "a connection was refused");
                }
                reception.introductions.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().name("brigade introduction".into()).spawn(hear).is_ok() {
                return;
            }
        }
        self.introductions.fetch_sub(1, Ordering::Relaxed);
    }

    fn hear(&self, mut stream: Stream, address: IpAddr) -> Result<(), HandshakeError> {
        let deadline = Instant::now() + INTRODUCTION;
        stream.set_blocking()?;
        answer(&mut stream, &self.token, deadline)?;
        match (stream.receive(deadline)?, stream) {
            (Message::Join(hello), mut stream) => match &*lock(&self.joiners) {
                Some(joiners) => joiners
                    .send(Ok(Joiner { hello, stream, address }))
                    .map_err(|_| HandshakeError::Stranger("the world is no longer forming".into())),
                None => {
                    let reason = "the world there is already complete, or this is not rank 0".into();
                    Ok(stream.send(&Message::Refused { reason, again: false }, deadline)?)
                }
            },
            // Who calls for a group that this rank has left finds out by the closed connection.
            (Message::Link(hello), Stream::Tcp(stream)) => self.bring(purpose(&hello), Arrival::Tcp(stream)),
            (Message::Link(hello), Stream::Unix(stream)) => {
                let [segment, doorbell] = descriptors::receive(&stream, deadline)?;
                let own = self
                    .doorbell(hello.group)
                    .map_err(|error| HandshakeError::Stranger(error.to_string()))?;
                descriptors::send(&stream, &[own.as_fd()])?;
                self.bring(purpose(&hello), Arrival::Memory { segment, doorbell })
            }
            (message, _) => Err(HandshakeError::Stranger(format!("a connection starts with {message:?}"))),
        }
    }

    /// What wakes this rank in a group, from the first time that the group is heard of.
    ///
    /// # Errors
    /// If this rank has left the group, or there are no descriptors.
    pub(super) fn doorbell(&self, group: u64) -> Result<Arc<Doorbell>, Error> {
        let mut groups = lock(&self.groups);
        if groups.left.contains(&group) {
            return Err(Error::System { what: "make a link", reason: "this rank has left its group".into() });
        }
        match groups.doorbells.get(&group) {
            Some(doorbell) => Ok(doorbell.clone()),
            None => {
                let doorbell = Arc::new(Doorbell::new()?);
                groups.doorbells.insert(group, doorbell.clone());
                Ok(doorbell)
            }
        }
    }

    /// Makes no more links of a group.
    pub(super) fn leave(&self, group: u64) {
        let mut groups = lock(&self.groups);
        groups.left.insert(group);
        groups.doorbells.remove(&group);
        groups.links.retain(|(_, of, ..), _| *of != group);
    }

    /// Lays down what a link can be made of, and wakes who may wait for it.
    pub(super) fn bring(&self, purpose: Purpose, arrival: Arrival) -> Result<(), HandshakeError> {
        let (_, group, ..) = purpose;
        let doorbell = self.doorbell(group).map_err(|error| HandshakeError::Stranger(error.to_string()))?;
        let mut groups = lock(&self.groups);
        if groups.left.contains(&group) {
            return Err(HandshakeError::Stranger("this rank has left the link's group".into()));
        }
        if groups.links.len() >= MAX_WAITING {
            return Err(HandshakeError::Stranger("too many links wait for their groups".into()));
        }
        groups.links.insert(purpose, Some(arrival));
        doorbell.ring();
        Ok(())
    }

    /// Takes what has come for a link.
    pub(super) fn find(&self, purpose: &Purpose) -> Found {
        let mut groups = lock(&self.groups);
        match groups.links.get_mut(purpose).map(Option::take) {
            Some(Some(arrival)) => {
                groups.links.remove(purpose);
                Found::Arrival(arrival)
            }
            Some(None) => Found::Nothing,
            None => {
                groups.links.insert(*purpose, None);
                Found::First
            }
        }
    }

    /// Takes no more ranks in: the world is complete, or will never be.
    pub(super) fn close_rendezvous(&self) {
        *lock(&self.joiners) = None;
    }

    /// Whether its world is over.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Connections that were refused because they did not know the token.
    pub(super) fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}

/// What a peer's call is for.
fn purpose(LinkHello { world, from, group, r#use }: &LinkHello) -> Purpose {
    let channel = match r#use {
        Use::Collective => Channel::Collective,
        Use::Transfer => Channel::Inbound,
    };
    (*world, *group, *from, channel)
}
