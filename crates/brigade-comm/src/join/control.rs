//! The control plane: one connection between rank 0 and every other rank, open from the rendezvous to the end.
//!
//! It carries the news of the first failure to everybody. A connection that closes before its rank said goodbye
//! means that the rank is dead.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::message::{FrameBuffer, Message};
use crate::error::Error;
use crate::fault::{Failure, Fault};
use crate::link::Doorbell;
use crate::sync::{lock, wait_until};

/// Between two signs of life.
const PING: Duration = Duration::from_millis(400);

/// How long a host may leave bytes unacknowledged before it counts as lost. A process that is merely stopped does
/// not come under this: its host still acknowledges.
const LOST: Duration = Duration::from_millis(1500);

/// The longest text of a failure that is passed on, in bytes.
const MAX_REASON_BYTES: usize = 16 << 10;

/// This rank's part in the control plane.
pub(super) struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    fault: Arc<Fault>,
    doorbell: Arc<Doorbell>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// This rank is done and wants to leave together with the others.
    leaving: bool,
    /// All ranks are done.
    complete: bool,
    /// The thread is to end, come what may.
    stop: bool,
}

struct Connection {
    rank: usize,
    stream: TcpStream,
    received: FrameBuffer,
    said_goodbye: bool,
    open: bool,
}

impl Control {
    /// Starts to watch over the connections: from rank 0 to every other rank, or from another rank to rank 0.
    pub(super) fn start(
        rank: usize,
        streams: Vec<(usize, TcpStream)>,
        fault: Arc<Fault>,
    ) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::System {
            what: "set up the control connections",
            reason: error.to_string(),
        };
        let doorbell = Arc::new(Doorbell::new()?);
        fault.watch(&doorbell);
        let mut connections = Vec::new();
        for (rank, stream) in streams {
            stream.set_nonblocking(true).map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(LOST)).map_err(failed)?;
            let received = FrameBuffer::default();
            connections.push(Connection { rank, stream, received, said_goodbye: false, open: true });
        }
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { rank, fault, doorbell, state, changed });
        let thread = std::thread::Builder::new()
            .name("brigade control".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run(connections)
            })
            .map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Says goodbye and waits until all ranks have; false when not all did within `wait`.
    pub(super) fn leave(&self, wait: Duration) -> Result<bool, Error> {
        let Shared { rank, fault, doorbell, state, changed } = &*self.shared;
        let deadline = Instant::now() + wait;
        let mut state = lock(state);
        state.leaving = true;
        doorbell.ring();
        let mut in_time = true;
        while !state.complete && in_time {
            fault.check(*rank)?;
            (state, in_time) = wait_until(changed, state, deadline);
        }
        Ok(state.complete)
    }
}

impl Drop for Control {
    /// Ends the thread, which first passes on a failure that it has not yet passed on.
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.doorbell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, mut connections: Vec<Connection>) {
        let (mut announced, mut said_goodbye) = (false, false);
        let mut last_ping = Instant::now();
        loop {
            let (leaving, stop) = {
                let state = lock(&self.state);
                (state.leaving, state.stop)
            };
            if let Some(failure) = self.fault.get().filter(|_| !announced) {
                announced = true;
                self.send_all(&mut connections, &announcement(failure), failure.origin);
                self.changed.notify_all();
            }
            if leaving && !announced {
                if self.rank == 0 && connections.iter().all(|connection| connection.said_goodbye) {
                    self.send_all(&mut connections, &Message::Farewell, self.rank);
                    return self.complete();
                }
                if self.rank != 0 && !said_goodbye {
                    said_goodbye = true;
                    self.send_all(&mut connections, &Message::Goodbye, self.rank);
                }
            }
            if stop {
                return;
            }
            let open = connections.iter().filter(|connection| connection.open);
            let awaited: Vec<_> = open.map(|c| (c.stream.as_fd(), PollFlags::IN)).collect();
            self.doorbell.wait(&awaited, PING.saturating_sub(last_ping.elapsed()));
            for connection in connections.iter_mut().filter(|connection| connection.open) {
                if self.listen(connection) {
                    return self.complete();
                }
            }
            if last_ping.elapsed() >= PING {
                last_ping = Instant::now();
                self.send_all(&mut connections, &Message::Ping, self.rank);
            }
        }
    }

    fn complete(&self) {
        lock(&self.state).complete = true;
        self.changed.notify_all();
    }

    /// Reads what a connection has for this rank; true when all ranks are done.
    fn listen(&self, connection: &mut Connection) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match connection.stream.read(&mut bytes) {
                Ok(0) => return self.lost(connection, "its control connection closed"),
                Ok(count) => connection.received.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return self.lost(connection, &format!("its control connection broke: {error}"));
                }
            }
            loop {
                match connection.received.next() {
                    Ok(None) => break,
                    Ok(Some(Message::Ping)) => {}
                    Ok(Some(Message::Goodbye)) => connection.said_goodbye = true,
                    Ok(Some(Message::Farewell)) if connection.rank == 0 => return true,
                    Ok(Some(Message::Fault { origin, died, reason })) => {
                        let error = match died {
                            true => Error::PeerDied { peer: origin, reason },
                            false => Error::PeerFailed { peer: origin, reason },
                        };
                        self.fault.raise(origin, error);
                    }
                    Ok(Some(message)) => return self.lost(connection, &format!("it sent {message:?}")),
                    Err(reason) => return self.lost(connection, &reason),
                }
            }
        }
    }

    fn lost(&self, connection: &mut Connection, reason: &str) -> bool {
        connection.open = false;
        if !connection.said_goodbye {
            let error = Error::PeerDied { peer: connection.rank, reason: reason.into() };
            self.fault.raise(connection.rank, error);
        }
        false
    }

    /// Sends to everybody but `except`.
    fn send_all(&self, connections: &mut [Connection], message: &Message, except: usize) {
        let frame = message.frame();
        let others = connections.iter_mut().filter(|connection| connection.open && connection.rank != except);
        for connection in others {
            match send(&mut connection.stream, &frame) {
                Ok(()) => {}
                // A full buffer shows that the peer has been stopped for long; it needs no more pings.
                Err(error) if error.kind() == ErrorKind::WouldBlock && *message == Message::Ping => {}
                // Reading will tell how it ended, and what it said last.
                Err(error) => {
                    tracing::debug!(rank = connection.rank, %error, "cannot send a control message")
                }
            }
        }
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

fn announcement(failure: &Failure) -> Message {
    let (died, mut reason) = match &failure.error {
        Error::PeerDied { reason, .. } => (true, reason.clone()),
        Error::PeerFailed { reason, .. } => (false, reason.clone()),
        error => (false, error.to_string()),
    };
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    Message::Fault { origin: failure.origin, died, reason }
}
