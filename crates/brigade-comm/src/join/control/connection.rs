//! One connection of the control plane.

use std::io::{ErrorKind, Result};
use std::time::{Duration, Instant};

use crate::join::wire::message::{FrameBuffer, Message};
use crate::link::tcp::sealed::SealedStream;

/// How long the rest of a message may wait until the connection takes it.
const REST: Duration = Duration::from_secs(1);

/// A connection to the other side.
pub(in crate::join) struct Connection {
    /// The rank there.
    pub(in crate::join) rank: usize,
    pub(in crate::join) stream: SealedStream,
    pub(in crate::join) received: FrameBuffer,
    /// When the last message came.
    pub(in crate::join) last_received: Instant,
    pub(in crate::join) is_done: bool,
    pub(in crate::join) open: bool,
}

impl Connection {
    /// An open connection to a rank, from which a message has just come.
    pub(in crate::join) fn new(rank: usize, stream: SealedStream) -> Self {
        let (received, last_received) = (FrameBuffer::default(), Instant::now());
        Self { rank, stream, received, last_received, is_done: false, open: true }
    }
}

/// Sends a message.
pub(in crate::join) fn deliver(connection: &mut Connection, message: &Message) {
    match send(&mut connection.stream, message) {
        Ok(()) => {}
        // Reading shows how it ended, and what was sent last.
        Err(error) => tracing::debug!(rank = connection.rank, %error, "cannot send a control message"),
    }
}

/// Sends a message, or as much as the connection takes within a second; the rest goes before the next one.
fn send(stream: &mut SealedStream, message: &Message) -> Result<()> {
    // A full connection means that the peer has been stopped for a long time; it needs no more pings.
    if !stream.flush()? && *message == Message::Ping {
        return Ok(());
    }
    let frame = message.frame();
    let (mut sent, deadline) = (0, Instant::now() + REST);
    while sent < frame.len() || stream.is_full() {
        sent += stream.write([&frame[sent..], &[]])?;
        if stream.is_full() {
            if Instant::now() >= deadline {
                return Err(ErrorKind::WouldBlock.into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}
