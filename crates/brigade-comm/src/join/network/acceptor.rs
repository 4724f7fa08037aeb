//! Accepts connections: from ranks that join, and those that become links.

use crate::join::network::pending_links::LinkOutcome;
use crate::join::network::pending_links::PendingLinks;
use crate::join::network::pending_links::key;
use crate::join::wire::handshake::HANDSHAKE_TIMEOUT;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::error::Error;
use crate::fault::Fault;
use crate::join::network::descriptors;
use crate::join::wire::auth_token::{AuthToken, random};
use crate::join::wire::handshake::{HandshakeError, SecureStream, Stream, respond};
use crate::join::wire::message::{Hello, Message};
use crate::limits::MAX_WORLD_SIZE;
use crate::link::shared::event_fd::EventFd;
use crate::open_files::is_out_of_files;
use crate::sync::lock;

/// Handshakes at the same time. Further connections are closed, and their ranks try again.
const MAX_HANDSHAKES: usize = 256;

/// Connections that may wait to be accepted. All ranks may connect at once; a rank that finds the queue full tries again a
/// second later.
const BACKLOG: i32 = MAX_WORLD_SIZE as i32;

/// How long to wait after a connection could not be accepted.
const BACK_OFF: Duration = Duration::from_millis(50);

/// How long descriptors may be short, with no handshake left to give some back, before the world fails: other programs, and other
/// parts of this one, may hold some for a moment.
const SHORTAGE: Duration = Duration::from_secs(5);

/// A rank that wants to join, and its address.
pub(in crate::join) struct JoinRequest {
    pub(in crate::join) hello: Hello,
    pub(in crate::join) stream: SecureStream,
    pub(in crate::join) address: IpAddr,
}

/// Accepts connections, and keeps those of links until their group asks for them.
pub(in crate::join) struct Acceptor {
    token: AuthToken,
    /// How long a rank that has proved itself may be stopped before it has sent all of a link.
    wait: Duration,
    pub(in crate::join) links: PendingLinks,
    /// On rank 0 until the world is complete: where join requests go.
    requests: Mutex<Option<Sender<Result<JoinRequest, Error>>>>,
    rank: usize,
    fault: Arc<Fault>,
    handshakes: AtomicUsize,
    refused: AtomicUsize,
    closing: AtomicBool,
    event_fd: EventFd,
}

/// The thread of an acceptor; it ends when this is dropped.
pub(in crate::join) struct AcceptorThread {
    pub(in crate::join) acceptor: Arc<Acceptor>,
    /// The TCP port of the last listener.
    pub(in crate::join) port: u16,
    /// The name of the abstract Unix socket.
    pub(in crate::join) socket: String,
    thread: Option<JoinHandle<()>>,
}

impl AcceptorThread {
    /// Starts to accept connections on bound listeners and on a Unix socket of its own.
    pub(in crate::join) fn start(
        rank: usize,
        listeners: Vec<TcpListener>,
        token: AuthToken,
        wait: Duration,
        requests: Option<Sender<Result<JoinRequest, Error>>>,
        fault: Arc<Fault>,
    ) -> Result<Self, Error> {
        let failed = |what| move |error: io::Error| Error::system(what, error);
        let name: [u8; 16] = random()?;
        let socket = format!("brigade-{:032x}", u128::from_ne_bytes(name));
        let port = listeners.last().ok_or_else(|| ErrorKind::InvalidInput.into());
        let port =
            port.and_then(TcpListener::local_addr).map_err(failed("find the port of a listener"))?.port();
        let local = SocketAddr::from_abstract_name(&socket)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(failed("listen on a Unix socket"))?;
        listeners
            .iter()
            .try_for_each(|listener| {
                listener.set_nonblocking(true)?;
                Ok(rustix::net::listen(listener, BACKLOG)?)
            })
            .and_then(|()| local.set_nonblocking(true))
            .and_then(|()| Ok(rustix::net::listen(&local, BACKLOG)?))
            .map_err(failed("set up a listener"))?;
        let acceptor = Arc::new(Acceptor {
            token,
            wait,
            links: PendingLinks::default(),
            requests: Mutex::new(requests),
            rank,
            fault,
            handshakes: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            event_fd: EventFd::new()?,
        });
        let thread = std::thread::Builder::new()
            .name("brigade acceptor".into())
            .spawn({
                let acceptor = acceptor.clone();
                move || acceptor.run(&listeners, &local)
            })
            .map_err(failed("start a thread"))?;
        Ok(Self { acceptor, port, socket, thread: Some(thread) })
    }
}

impl Drop for AcceptorThread {
    fn drop(&mut self) {
        self.acceptor.closing.store(true, Ordering::Release);
        self.acceptor.event_fd.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Acceptor {
    fn run(self: &Arc<Self>, listeners: &[TcpListener], local: &UnixListener) {
        let all = listeners.iter().map(AsFd::as_fd).chain([local.as_fd()]);
        let all: Vec<_> = all.map(|listener| (listener, PollFlags::IN)).collect();
        let mut short_since = None;
        while !self.closing.load(Ordering::Acquire) {
            self.event_fd.wait(&all, Duration::from_secs(1));
            match self.take_in(listeners, local) {
                Ok(()) => short_since = None,
                Err(error) => {
                    // Strangers hold descriptors only as long as a handshake may take: they cannot end the world.
                    if self.handshakes.load(Ordering::Relaxed) > 0 {
                        short_since = None;
                    }
                    let since = *short_since.get_or_insert_with(Instant::now);
                    if is_out_of_files(&error) && since.elapsed() >= SHORTAGE {
                        self.fail(Error::system("take in another rank's connection", error));
                    }
                    // The listeners stay readable: without a pause this would be a busy loop.
                    self.event_fd.wait(&[], BACK_OFF);
                }
            }
        }
    }

    /// Accepts all connections that are waiting.
    fn take_in(self: &Arc<Self>, listeners: &[TcpListener], local: &UnixListener) -> io::Result<()> {
        let till_nobody_waits = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        };
        let take_in_of = |listener: &TcpListener| loop {
            match listener.accept() {
                Ok((stream, address)) => {
                    self.spawn_handshake(Stream::Tcp(stream), address.ip().to_canonical());
                }
                Err(error) => break till_nobody_waits(error),
            }
        };
        let remote = listeners.iter().map(take_in_of).fold(Ok(()), io::Result::and);
        loop {
            match local.accept() {
                Ok((stream, _)) => {
                    // Another user can find the socket, but not use it.
                    let own = rustix::process::getuid();
                    if rustix::net::sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid == own) {
                        self.spawn_handshake(Stream::Unix(stream), IpAddr::from([127, 0, 0, 1]));
                    }
                }
                Err(error) => break till_nobody_waits(error).and(remote),
            }
        }
    }

    /// Reports that no connection can be accepted any more: to rank 0's rendezvous, and to the world.
    fn fail(&self, error: Error) {
        if let Some(requests) = lock(&self.requests).take() {
            // Rank 0 has given up waiting.
            let _ = requests.send(Err(error.clone()));
        }
        self.fault.raise(self.rank, error);
    }

    /// Runs a connection's handshake on a thread of its own, so that none can hold up the others.
    fn spawn_handshake(self: &Arc<Self>, stream: Stream, address: IpAddr) {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) < MAX_HANDSHAKES {
            let acceptor = self.clone();
            let handshake = move || {
                let outcome = acceptor.handshake(stream, address);
                if let Err(HandshakeError::WrongToken) = outcome {
                    acceptor.refused.fetch_add(1, Ordering::Relaxed);
                }
                if let Err(error) = outcome {
                    tracing::debug!(%address, %error, "a connection was refused");
                }
                acceptor.handshakes.fetch_sub(1, Ordering::Relaxed);
            };
            if std::thread::Builder::new().name("brigade handshake".into()).spawn(handshake).is_ok() {
                return;
            }
        }
        self.handshakes.fetch_sub(1, Ordering::Relaxed);
    }

    fn handshake(&self, stream: Stream, address: IpAddr) -> Result<(), HandshakeError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        stream.set_blocking()?;
        let mut stream = respond(stream, &self.token, deadline)?;
        let hello = match stream.receive(deadline)? {
            Message::Link(hello) => hello,
            Message::Join(hello) => return self.take_request(hello, stream, address, deadline),
            message => {
                let problem = format!("a connection starts with {message:?}");
                return Err(HandshakeError::UnexpectedPeer(problem));
            }
        };
        // A peer that connects for a group that this rank has left learns so from the closed connection.
        match stream.into_parts() {
            (Stream::Tcp(stream), session) => {
                self.links.store(key(&hello), LinkOutcome::Tcp(stream, session))
            }
            (Stream::Unix(stream), _) => {
                let [segment, event_fd] = descriptors::receive(&stream, Instant::now() + self.wait)?;
                let own = self
                    .links
                    .event_fd(hello.group)
                    .map_err(|error| HandshakeError::UnexpectedPeer(error.to_string()))?;
                descriptors::send(&stream, &[own.as_fd()])?;
                self.links.store(key(&hello), LinkOutcome::Memory { segment, event_fd })
            }
        }
    }

    /// Hands a rank that wants to join to rank 0's rendezvous.
    fn take_request(
        &self,
        hello: Hello,
        mut stream: SecureStream,
        address: IpAddr,
        deadline: Instant,
    ) -> Result<(), HandshakeError> {
        match &*lock(&self.requests) {
            Some(requests) => requests
                .send(Ok(JoinRequest { hello, stream, address }))
                .map_err(|_| HandshakeError::UnexpectedPeer("the world is no longer forming".into())),
            None => {
                let reason = "the world there is already complete, or this is not rank 0".into();
                Ok(stream.send(&Message::Refused { reason, again: false }, deadline)?)
            }
        }
    }

    /// Accepts no more ranks: the world is complete, or has failed to form.
    pub(in crate::join) fn close_rendezvous(&self) {
        *lock(&self.requests) = None;
    }

    /// Whether its world is over.
    pub(in crate::join) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Connections that were refused because they did not know the token.
    pub(in crate::join) fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }
}
