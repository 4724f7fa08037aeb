//! A TCP connection on which everything is sealed.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::link::tcp::session::{
    LENGTH_BYTES, MAX_RECORD_BYTES, PLAIN_BYTES, Session, plain_bytes, record_bytes,
};

/// Plain bytes that are sealed before they are sent.
const STEP_BYTES: usize = 4 * PLAIN_BYTES;

/// One end of a connection that never blocks. Its caller reads until nothing comes before it waits for more.
pub(crate) struct SealedStream {
    socket: TcpStream,
    session: Session,
    /// Sealed, and not sent yet from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// What of `incoming` has come and has not been opened.
    incoming: Box<[u8]>,
    arrived: Range<usize>,
    /// Since when a part of a record has come, and not the rest.
    partial_since: Option<Instant>,
    /// Opened, and not read yet from `read` on.
    opened: Vec<u8>,
    read: usize,
}

impl SealedStream {
    /// Of a socket that does not block. At most `buffer_bytes` are received at once, or one record if that is more.
    pub(crate) fn new(socket: TcpStream, session: Session, buffer_bytes: usize) -> Self {
        let incoming = vec![0; buffer_bytes.max(MAX_RECORD_BYTES + LENGTH_BYTES)].into_boxed_slice();
        Self {
            socket,
            session,
            outgoing: Vec::new(),
            sent: 0,
            incoming,
            arrived: 0..0,
            partial_since: None,
            opened: Vec::new(),
            read: 0,
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

    /// Opens the next record, if all of it has come, into `into` or, if it is longer, into `opened`.
    fn open(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let arrived = &self.incoming[self.arrived.clone()];
        let Some(bytes) = record_bytes(arrived) else { return Ok(None) };
        let Some(record) = arrived.get(LENGTH_BYTES..LENGTH_BYTES + bytes) else { return Ok(None) };
        let invalid = |problem| io::Error::new(ErrorKind::InvalidData, problem);
        let count = if into.len() >= plain_bytes(bytes) {
            self.session.open(record, into).map_err(invalid)?
        } else {
            self.opened.resize(plain_bytes(bytes), 0);
            let count = self.session.open(record, &mut self.opened).map_err(invalid)?;
            self.opened.truncate(count);
            self.read = 0;
            self.take(into)
        };
        self.arrived.start += LENGTH_BYTES + bytes;
        self.partial_since = None;
        Ok(Some(count))
    }

    /// Moves opened bytes.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let left = &self.opened[self.read..];
        let count = left.len().min(into.len());
        into[..count].copy_from_slice(&left[..count]);
        self.read += count;
        count
    }
}

/// As of a socket: [`ErrorKind::WouldBlock`] while nothing has come, and 0 at the end.
impl Read for SealedStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut count = self.take(into);
        while count < into.len() {
            if let Some(opened) = self.open(&mut into[count..])? {
                count += opened;
                continue;
            }
            if count > 0 {
                break;
            }
            self.incoming.copy_within(self.arrived.clone(), 0);
            self.arrived = 0..self.arrived.len();
            match self.socket.read(&mut self.incoming[self.arrived.end..])? {
                0 => return Ok(0),
                received => self.arrived.end += received,
            }
            if self.partial_since.is_none() {
                self.partial_since = Some(Instant::now());
            }
        }
        Ok(count)
    }
}
