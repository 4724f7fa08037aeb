//! Calls that a listener takes, each on a thread of its own.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks for callers.
const POLL: Duration = Duration::from_millis(10);

/// Takes calls at a listener until it is closed or dropped. What attends to them is told when that is so, and ends by itself.
pub struct Calls {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    closing: AtomicBool,
    running: AtomicUsize,
}

/// A call that counts as running for as long as this lives, also if what attends to it panics.
struct Call(Arc<State>);

impl Call {
    fn begin(state: &Arc<State>) -> Self {
        state.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Calls {
    /// Takes up to `most` calls at the same time from now on; further ones are closed, and may come again. `name` is that of the threads. `attend` gets the
    /// connection, and whether the listener is closing.
    ///
    /// # Errors
    /// If the listener cannot be polled, or a thread cannot be started.
    pub fn take(
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
                let call = Call::begin(&listening);
                if listening.running.load(Ordering::SeqCst) > most {
                    continue;
                }
                let attend = Arc::clone(&attend);
                let attended = move || attend(stream, &call.0.closing);
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

    /// Takes no more calls.
    pub fn close(&mut self) {
        self.state.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for Calls {
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
    fn a_call_whose_attendance_panics_counts_no_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Calls::take(listener, "calls", 1, |_, _| panic!("on purpose")).unwrap();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert!(!matches!(stream.read(&mut [0]), Ok(1)));
        }
        let begin = Instant::now();
        while calls.running() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(POLL);
        }
    }

    #[test]
    fn so_many_are_attended_to_at_once_and_none_after_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut calls = Calls::take(listener, "calls", 1, |mut stream, closing| {
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
        assert_eq!(calls.running(), 1);
        assert!(!said(TcpStream::connect(address).unwrap()), "one is attended to");
        calls.close();
        let begin = Instant::now();
        while calls.running() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            thread::sleep(POLL);
        }
        assert!(TcpStream::connect(address).is_err());
    }
}
