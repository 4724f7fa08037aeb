//! One connection of the control plane.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::message::{FrameBuffer, Message};

/// A connection to the other side.
pub(super) struct Connection {
    /// The rank there.
    pub(super) rank: usize,
    pub(super) stream: TcpStream,
    pub(super) received: FrameBuffer,
    /// When it last brought something.
    pub(super) heard: Instant,
    pub(super) is_done: bool,
    pub(super) open: bool,
}

/// Sends a message.
pub(super) fn deliver(connection: &mut Connection, message: &Message) {
    match send(&mut connection.stream, &message.frame()) {
        Ok(()) => {}
        // A full buffer shows that the peer has been stopped for long; it needs no more pings.
        Err(error) if error.kind() == ErrorKind::WouldBlock && *message == Message::Ping => {}
        // Reading will tell how it ended, and what it said last.
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
