//! One connection of the control plane.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::join::wire::message::{FrameBuffer, Message};

/// A connection to the other side.
pub(in crate::join) struct Connection {
    /// The rank there.
    pub(in crate::join) rank: usize,
    pub(in crate::join) stream: TcpStream,
    pub(in crate::join) received: FrameBuffer,
    /// When the last message came.
    pub(in crate::join) heard: Instant,
    pub(in crate::join) is_done: bool,
    pub(in crate::join) open: bool,
}

/// Sends a message.
pub(in crate::join) fn deliver(connection: &mut Connection, message: &Message) {
    match send(&mut connection.stream, &message.frame()) {
        Ok(()) => {}
        // A full buffer means that the peer has been stopped for a long time; it needs no more pings.
        Err(error) if error.kind() == ErrorKind::WouldBlock && *message == Message::Ping => {}
        // Reading shows how it ended, and what was sent last.
        Err(error) => tracing::debug!(rank = connection.rank, %error, "cannot send a control message"),
    }
}

/// Sends a whole frame or, if the connection is full, nothing. Between the two there is a second for the rest.
fn send(stream: &mut TcpStream, frame: &[u8]) -> std::io::Result<()> {
    let mut sent = stream.write(frame)?;
    let deadline = Instant::now() + Duration::from_secs(1);
    while sent < frame.len() {
        match stream.write(&frame[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
