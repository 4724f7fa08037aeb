//! Takes in connections: those of ranks that join, and those that become links.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::descriptors;
use super::handshake::{HandshakeError, Stream, answer};
use super::message::{Channel, Hello, LinkHello, Message};
use super::token::{Token, random};
use crate::error::Error;
use crate::fault::Fault;
use crate::files::is_out_of_files;
use crate::link::Doorbell;
use crate::sync::{lock, wait_until};

/// How long a connection may take to say who it is.
pub(super) const INTRODUCTION: Duration = Duration::from_secs(10);

/// Connections that may be saying who they are at the same time. More are closed, and try again.
const MAX_INTRODUCTIONS: usize = 256;

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

/// A connection that a peer made for a link.
pub(super) enum Arrival {
    Tcp(TcpStream),
    Memory { stream: UnixStream, segment: OwnedFd, doorbell: OwnedFd },
}

/// What a link is for: world, group, the peer's world rank, channel.
pub(super) type Purpose = (u64, u64, usize, Channel);

/// Where connections wait until they are asked for.
pub(super) struct Reception {
    token: Token,
    arrivals: Mutex<HashMap<Purpose, Arrival>>,
    changed: Condvar,
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
            .map_err(failed("set up a listener"))?;
        let reception = Arc::new(Reception {
            token,
            arrivals: Mutex::default(),
            changed: Condvar::new(),
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
            (Message::Link(hello), Stream::Tcp(stream)) if hello.channel != Channel::Memory => {
                self.deposit(&hello, Arrival::Tcp(stream))
            }
            (Message::Link(hello), Stream::Unix(stream)) if hello.channel == Channel::Memory => {
                let [segment, doorbell] = descriptors::receive(&stream, deadline)?;
                self.deposit(&hello, Arrival::Memory { stream, segment, doorbell })
            }
            (message, _) => Err(HandshakeError::Stranger(format!("a connection starts with {message:?}"))),
        }
    }

    fn deposit(&self, hello: &LinkHello, arrival: Arrival) -> Result<(), HandshakeError> {
        let mut arrivals = lock(&self.arrivals);
        if arrivals.len() >= MAX_WAITING {
            return Err(HandshakeError::Stranger("too many links wait for their groups".into()));
        }
        arrivals.insert((hello.world, hello.group, hello.from, hello.channel), arrival);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes a connection that a peer made, or waits for it a little.
    pub(super) fn take(&self, purpose: &Purpose, deadline: Instant) -> Option<Arrival> {
        let mut arrivals = lock(&self.arrivals);
        let mut in_time = true;
        loop {
            match arrivals.remove(purpose) {
                None if in_time => (arrivals, in_time) = wait_until(&self.changed, arrivals, deadline),
                arrival => return arrival,
            }
        }
    }

    /// Takes no more ranks in: the world is complete, or will never be.
    pub(super) fn close_rendezvous(&self) {
        *lock(&self.joiners) = None;
    }

    /// Connections that were refused because they did not know the token.
    pub(super) fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}
