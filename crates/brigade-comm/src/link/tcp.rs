//! A link through a TCP connection.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::error::Error;
use crate::link::error::LinkError;

/// Writes up to this size are gathered, so that a header, a small payload and its padding leave together.
const SMALL_BYTES: usize = 8 << 10;

/// One end of a connection. Received bytes go straight to their destination where that is known, and through a
/// ring of the same size as that of shared memory where they are to be reduced.
pub(crate) struct TcpLink {
    socket: TcpStream,
    gathered: Vec<u8>,
    ring: Box<[u8]>,
    head: u64,
    tail: u64,
    ended: bool,
}

impl TcpLink {
    /// `ring_bytes` is a power of two.
    pub(crate) fn new(socket: TcpStream, ring_bytes: usize) -> Result<Self, Error> {
        // The sizes of the socket's buffers are left to the system, which fits them to the path.
        let options = || {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)
        };
        options().map_err(|error| Error::system("set up a connection", error))?;
        let ring = vec![0; ring_bytes].into_boxed_slice();
        Ok(Self { socket, gathered: Vec::with_capacity(SMALL_BYTES), ring, head: 0, tail: 0, ended: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, LinkError> {
        if self.gathered.len() + bytes.len() <= SMALL_BYTES {
            self.gathered.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let slices = [IoSlice::new(&self.gathered), IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.socket, &slices, &mut SendAncillaryBuffer::default(), flags);
        let sent = ready(sent.map_err(Into::into))?;
        let gathered = sent.min(self.gathered.len());
        self.gathered.drain(..gathered);
        Ok(sent - gathered)
    }

    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        while !self.gathered.is_empty() {
            match ready(self.socket.write(&self.gathered))? {
                0 => return Ok(false),
                sent => drop(self.gathered.drain(..sent)),
            }
        }
        Ok(true)
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        let fetched = self.peek();
        if fetched.is_empty() {
            let count = self.receive(into)?;
            // As if the bytes had gone through the ring: its positions stay those of the stream.
            self.head += count as u64;
            self.tail += count as u64;
            return Ok(count);
        }
        let count = fetched.len().min(into.len());
        into[..count].copy_from_slice(&fetched[..count]);
        self.consume(count);
        Ok(count)
    }

    pub(super) fn fetch(&mut self) -> Result<(), LinkError> {
        let used = (self.head - self.tail) as usize;
        let start = self.head as usize % self.ring.len();
        let end = (start + self.ring.len() - used).min(self.ring.len());
        if used < self.ring.len() / 2 {
            let mut ring = std::mem::take(&mut self.ring);
            let received = self.receive(&mut ring[start..end]);
            self.ring = ring;
            self.head += match received {
                // What came before the end is still to be used.
                Err(LinkError::Closed) if used > 0 => {
                    self.ended = true;
                    0
                }
                received => received? as u64,
            };
        }
        Ok(())
    }

    pub(super) fn peek(&self) -> &[u8] {
        let start = self.tail as usize % self.ring.len();
        let available = (self.head - self.tail) as usize;
        &self.ring[start..(start + available).min(self.ring.len())]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.tail += count as u64;
        debug_assert!(self.tail <= self.head);
    }

    pub(super) fn poll_for(&self, read: bool, write: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, read && !self.ended && self.head - self.tail < self.ring.len() as u64);
        flags.set(PollFlags::OUT, write || !self.gathered.is_empty());
        (!flags.is_empty()).then(|| (self.socket.as_fd(), flags))
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<usize, LinkError> {
        match self.socket.read(into) {
            Ok(0) if !into.is_empty() => Err(LinkError::Closed),
            received => ready(received),
        }
    }
}

/// The count of a transfer, 0 if it would have blocked.
fn ready(result: std::io::Result<usize>) -> Result<usize, LinkError> {
    match result {
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
            Err(LinkError::Closed)
        }
        Err(error) => Err(LinkError::Broken(error.to_string())),
    }
}
