//! A link through a TCP connection.

pub(crate) mod primitives;
pub(crate) mod sealed;
pub(crate) mod session;

use std::io::{self, ErrorKind, IoSlice, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::error::Error;
use crate::link::error::LinkError;
use crate::link::shared::rings::RING_BYTES;
use crate::link::tcp::sealed::SealedStream;
use crate::link::tcp::session::Session;
use crate::op::header::HEADER_BYTES;

/// Writes up to this size are gathered, so that a header, a small payload and its padding leave together.
const SMALL_BYTES: usize = 8 << 10;

/// One end of a connection. Received bytes go straight to their destination where that is known, and through a
/// buffer where they are to be reduced.
pub(crate) struct TcpLink {
    socket: Socket,
    gathered: Vec<u8>,
    received: Box<[u8]>,
    /// What of `received` has come and has not been consumed.
    fetched: Range<usize>,
    lead: usize,
    ended: bool,
}

/// How bytes travel.
enum Socket {
    Plain(TcpStream),
    Sealed(SealedStream),
}

impl TcpLink {
    /// What is to be reduced is received in parts of at most `buffer_bytes`. With a session, everything is sealed.
    pub(crate) fn new(
        socket: TcpStream,
        session: Option<Session>,
        buffer_bytes: usize,
    ) -> Result<Self, Error> {
        // The sizes of the socket's buffers are left to the system, which fits them to the path.
        let options = || -> io::Result<bool> {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            Ok(socket.local_addr()?.ip() == socket.peer_addr()?.ip())
        };
        let within_host = options().map_err(|error| Error::system("set up a connection", error))?;
        // As much payload as a peer in step sends at once fits behind a header. A sealed stream has a buffer of its own.
        let (socket, received) = match session {
            None => (Socket::Plain(socket), vec![0; buffer_bytes + HEADER_BYTES]),
            Some(session) => (Socket::Sealed(SealedStream::new(socket, session, buffer_bytes)), Vec::new()),
        };
        Ok(Self {
            socket,
            gathered: Vec::with_capacity(SMALL_BYTES),
            received: received.into_boxed_slice(),
            fetched: 0..0,
            // Within a host, what is on its way stays in the cache, as it does in a ring, and so do the pages that the system
            // copies it to. Between hosts, the system's own control knows how much the path holds.
            lead: if within_host { RING_BYTES } else { usize::MAX },
            ended: false,
        })
    }

    pub(crate) fn lead(&self) -> usize {
        self.lead
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        if self.gathered.len() + bytes.len() <= SMALL_BYTES {
            self.gathered.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let sent = ready(self.socket.send([&self.gathered, bytes]))?;
        let gathered = sent.min(self.gathered.len());
        self.gathered.drain(..gathered);
        Ok(sent - gathered)
    }

    pub(crate) fn flush(&mut self) -> Result<bool, LinkError> {
        while !self.gathered.is_empty() {
            match ready(self.socket.send([&self.gathered, &[]]))? {
                0 => return Ok(false),
                sent => drop(self.gathered.drain(..sent)),
            }
        }
        self.socket.flush().map_err(broken)
    }

    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        if self.fetched.is_empty() {
            return receive(&mut self.socket, into);
        }
        let fetched = self.peek();
        let count = fetched.len().min(into.len());
        into[..count].copy_from_slice(&fetched[..count]);
        self.consume(count);
        Ok(count)
    }

    pub(crate) fn fetch(&mut self) -> Result<(), LinkError> {
        if let Socket::Sealed(stream) = &mut self.socket {
            return match stream.fetch() {
                Ok(0) if stream.opened().is_empty() => Err(LinkError::Closed),
                // What came before the end is still to be used.
                Ok(0) => {
                    self.ended = true;
                    Ok(())
                }
                fetched => ready(fetched).map(drop),
            };
        }
        let half = self.received.len() / 2;
        if self.fetched.len() >= half {
            return Ok(());
        }
        if self.fetched.end > half {
            self.received.copy_within(self.fetched.clone(), 0);
            self.fetched = 0..self.fetched.len();
        }
        match receive(&mut self.socket, &mut self.received[self.fetched.end..]) {
            // What came before the end is still to be used.
            Err(LinkError::Closed) if !self.fetched.is_empty() => self.ended = true,
            received => self.fetched.end += received?,
        }
        Ok(())
    }

    pub(crate) fn peek(&self) -> &[u8] {
        match &self.socket {
            Socket::Plain(_) => &self.received[self.fetched.clone()],
            Socket::Sealed(stream) => stream.opened(),
        }
    }

    pub(crate) fn consume(&mut self, count: usize) {
        if let Socket::Sealed(stream) = &mut self.socket {
            return stream.consume(count);
        }
        debug_assert!(count <= self.fetched.len());
        self.fetched.start += count;
    }

    pub(crate) fn poll_for(&self, read: bool, write: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, read && !self.ended);
        flags.set(PollFlags::OUT, write || !self.gathered.is_empty() || self.socket.is_full());
        (!flags.is_empty()).then(|| (self.socket.as_fd(), flags))
    }
}

impl Socket {
    /// Takes the beginning of some bytes to send, and returns how many.
    fn send(&mut self, slices: [&[u8]; 2]) -> io::Result<usize> {
        match self {
            Self::Sealed(stream) => stream.write(slices),
            Self::Plain(socket) => {
                let (slices, flags) = (slices.map(IoSlice::new), SendFlags::NOSIGNAL);
                Ok(sendmsg(socket, &slices, &mut SendAncillaryBuffer::default(), flags)?)
            }
        }
    }

    /// Sends what was taken; false if some of it still waits.
    fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Sealed(stream) => stream.flush(),
            Self::Plain(_) => Ok(true),
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, Self::Sealed(stream) if stream.is_full())
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Sealed(stream) => stream.read(into),
            Self::Plain(socket) => socket.read(into),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Sealed(stream) => stream.as_fd(),
            Self::Plain(socket) => socket.as_fd(),
        }
    }
}

fn receive(socket: &mut Socket, into: &mut [u8]) -> Result<usize, LinkError> {
    match socket.read(into) {
        Ok(0) if !into.is_empty() => Err(LinkError::Closed),
        received => ready(received),
    }
}

/// The count of a transfer, 0 if it would have blocked.
fn ready(result: io::Result<usize>) -> Result<usize, LinkError> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(error) => Err(broken(error)),
    }
}

fn broken(error: io::Error) -> LinkError {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => LinkError::Closed,
        _ => LinkError::Broken(error.to_string()),
    }
}
