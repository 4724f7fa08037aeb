//! A TCP connection on which everything is sealed.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::link::tcp::session::{LENGTH_BYTES, MAX_RECORD_BYTES, PLAIN_BYTES, Session, record_bytes};
use crate::op::header::HEADER_BYTES;

/// Plain bytes that are sealed before they are sent.
const STEP_BYTES: usize = 4 * PLAIN_BYTES;

/// As many bytes are opened before a reader gets any, so that it can use a header or whole elements without moving them.
const ENOUGH: usize = HEADER_BYTES;

/// One end of a connection that never blocks. Its caller reads until nothing comes before it waits for more.
pub(crate) struct SealedStream {
    socket: TcpStream,
    session: Session,
    /// Sealed, and not sent yet from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Box<[u8]>,
    /// What of `incoming` is opened and has not been used, without gaps, and, behind it, what has come and has not been opened.
    opened: Range<usize>,
    arrived: Range<usize>,
    /// Since when a part of a record has come, and not the rest.
    partial_since: Option<Instant>,
}

impl SealedStream {
    /// Of a socket that does not block. It receives at most `buffer_bytes` besides the rest of a record.
    pub(crate) fn new(socket: TcpStream, session: Session, buffer_bytes: usize) -> Self {
        let incoming = vec![0; buffer_bytes + ENOUGH + LENGTH_BYTES + MAX_RECORD_BYTES].into_boxed_slice();
        Self {
            socket,
            session,
            outgoing: Vec::new(),
            sent: 0,
            incoming,
            opened: 0..0,
            arrived: 0..0,
            partial_since: None,
        }
    }

    /// Takes the beginning of some bytes to send, and returns how many; 0 while earlier ones wait.
    pub(crate) fn write(&mut self, slices: [&[u8]; 2]) -> io::Result<usize> {
        if !self.flush()? {
            return Ok(0);
        }
        let mut taken = 0;
        for bytes in slices {
            let bytes = &bytes[..bytes.len().min(STEP_BYTES - taken)];
            self.session.seal(bytes, &mut self.outgoing);
            taken += bytes.len();
        }
        self.flush()?;
        Ok(taken)
    }

    /// Sends what was taken; false if some of it still waits.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Whether some of what was taken has not been sent.
    pub(crate) fn is_full(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// For how long the rest of a record has been missing.
    pub(crate) fn waited_for_rest(&self) -> Option<Duration> {
        self.partial_since.map(|since| since.elapsed())
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What is opened and has not been used.
    pub(crate) fn opened(&self) -> &[u8] {
        &self.incoming[self.opened.clone()]
    }

    /// Drops the first `count` opened bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        debug_assert!(count <= self.opened.len());
        self.opened.start += count;
    }

    /// Opens what has come until there is a header's worth of it. As [`read`](Self::read), 0 at the end; otherwise the length of what is opened.
    pub(crate) fn fetch(&mut self) -> io::Result<usize> {
        while self.opened.len() < ENOUGH {
            if !self.open()? && self.receive()? == 0 {
                return Ok(0);
            }
        }
        Ok(self.opened.len())
    }

    /// Receives some bytes; 0 at the end.
    fn receive(&mut self) -> io::Result<usize> {
        self.make_room();
        let received = self.socket.read(&mut self.incoming[self.arrived.end..])?;
        self.arrived.end += received;
        if received > 0 && self.partial_since.is_none() {
            self.partial_since = Some(Instant::now());
        }
        Ok(received)
    }

    /// Moves all to the beginning, where there would not be room for the rest of a record behind it.
    fn make_room(&mut self) {
        let longest = self.arrived.start + LENGTH_BYTES + MAX_RECORD_BYTES;
        if longest > self.incoming.len() || (self.opened.is_empty() && self.arrived.is_empty()) {
            self.incoming.copy_within(self.opened.clone(), 0);
            self.opened = 0..self.opened.len();
            self.incoming.copy_within(self.arrived.clone(), self.opened.end);
            self.arrived = self.opened.end..self.opened.end + self.arrived.len();
        }
    }

    /// Opens the next record, if all of it has come, behind what is opened already.
    fn open(&mut self) -> io::Result<bool> {
        let Some(bytes) = record_bytes(&self.incoming[self.arrived.clone()]) else { return Ok(false) };
        let start = self.arrived.start + LENGTH_BYTES;
        if self.arrived.end < start + bytes {
            return Ok(false);
        }
        if self.opened.is_empty() {
            self.opened = self.arrived.start..self.arrived.start;
        }
        let end = self.opened.end;
        let opened = self.session.open(&mut self.incoming[end..start + bytes], start - end);
        let count = opened.map_err(|problem| io::Error::new(ErrorKind::InvalidData, problem))?;
        self.opened.end += count;
        self.arrived.start = start + bytes;
        self.partial_since = None;
        Ok(true)
    }

    /// Moves opened bytes.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = self.opened.len().min(into.len());
        into[..count].copy_from_slice(&self.opened()[..count]);
        self.consume(count);
        count
    }
}

/// As of a socket: [`ErrorKind::WouldBlock`] while nothing has come, and 0 at the end.
impl Read for SealedStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut count = self.take(into);
        while count < into.len() {
            if self.open()? {
                count += self.take(&mut into[count..]);
            } else if count > 0 {
                break;
            } else if self.receive()? == 0 {
                return Ok(0);
            }
        }
        Ok(count)
    }
}
