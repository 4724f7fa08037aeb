//! A listener whose connections each have a thread of their own.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks for connections.
const POLL: Duration = Duration::from_millis(10);

/// Accepts connections until closed or dropped; each handler thread sees the closing flag and exits on its own.
pub struct ConnectionListener {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    closing: AtomicBool,
    running: AtomicUsize,
}

/// A connection that counts as open for as long as this lives, also if what attends to it panics.
struct OpenConnection(Arc<State>);

impl OpenConnection {
    fn begin(state: &Arc<State>) -> Self {
        state.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ConnectionListener {
    /// Accepts up to `most` connections at the same time from now on; further ones are closed, and may come again. `name` is that of the threads. `attend` gets the
    /// connection, and whether the listener is closing.
    ///
    /// # Errors
    /// If the listener cannot be polled, or a thread cannot be started.
    pub fn listen(
        listener: TcpListener,
        name: &'static str,
        most: usize,
        attend: impl Fn(TcpStream, &AtomicBool) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let state = Arc::new(State::default());
        let (listening, attend) = (Arc::clone(&state), Arc::new(attend));
        let listen = move || {
            while !listening.closing.load(Ordering::SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(POLL);
                    continue;
                };
                let connection = OpenConnection::begin(&listening);
                if listening.running.load(Ordering::SeqCst) > most {
                    continue;
                }
                let attend = Arc::clone(&attend);
                let attended = move || attend(stream, &connection.0.closing);
                // Without a thread the connection is closed, and may come again.
                drop(thread::Builder::new().name(name.into()).spawn(attended));
            }
        };
        let thread = thread::Builder::new().name(name.into()).spawn(listen)?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// How many are attended to.
    pub fn running(&self) -> usize {
        self.state.running.load(Ordering::SeqCst)
    }

    /// Accepts no more connections.
    pub fn close(&mut self) {
        self.state.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for ConnectionListener {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_connection_whose_attendance_panics_counts_no_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = ConnectionListener::listen(listener, "listener", 1, |_, _| panic!("on purpose")).unwrap();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert!(!matches!(stream.read(&mut [0]), Ok(1)));
        }
        let begin = Instant::now();
        while open.running() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(POLL);
        }
    }

    #[test]
    fn so_many_are_attended_to_at_once_and_none_after_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut open = ConnectionListener::listen(listener, "listener", 1, |mut stream, closing| {
            stream.set_nonblocking(false).unwrap();
            stream.write_all(b"yes").unwrap();
            while !closing.load(Ordering::SeqCst) {
                thread::sleep(POLL);
            }
        })
        .unwrap();
        let said = |mut stream: TcpStream| {
            let mut text = [0; 3];
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.read_exact(&mut text).is_ok()
        };
        assert!(said(TcpStream::connect(address).unwrap()));
        assert_eq!(open.running(), 1);
        assert!(!said(TcpStream::connect(address).unwrap()), "one is attended to");
        open.close();
        let begin = Instant::now();
        while open.running() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(POLL);
        }
        assert!(TcpStream::connect(address).is_err());
    }
}
