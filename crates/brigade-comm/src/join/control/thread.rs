//! The thread of the control plane.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::error::{Diagnosis, Error, StalledRank};
use crate::fault::{Failure, Fault};
use crate::flight::{Recorder, STATUS_DELAY, unresponsive};
use crate::join::control::connection::{Connection, deliver};
use crate::join::control::status_query::{DIAGNOSIS, StatusQuery};
use crate::join::wire::message::Message;
use crate::link::shared::event_fd::EventFd;
use crate::link::tcp::sealed::SealedStream;
use crate::link::tcp::session::Session;
use crate::sync::{lock, wait_until};

/// The time between two pings.
const PING: Duration = Duration::from_millis(400);

/// How long rank 0 may send nothing before it counts as unresponsive, when a connection to another rank has closed: about as
/// long as a rank that ended because of it has waited for its answer.
const SILENT: Duration = DIAGNOSIS.saturating_sub(PING);

/// The longest text of a failure that is passed on, in bytes.
const MAX_REASON_BYTES: usize = 16 << 10;

/// This rank's part in the control plane.
pub(in crate::join) struct Control {
    pub(in crate::join) plane: Arc<ControlPlane>,
    thread: Option<JoinHandle<()>>,
}

/// What the control plane's thread shares with the engines of the groups.
pub(in crate::join) struct ControlPlane {
    rank: usize,
    /// How long a host may leave bytes unacknowledged before it counts as lost. A process that is merely stopped is
    /// not affected, because its host still acknowledges.
    unreachable: Duration,
    fault: Arc<Fault>,
    recorder: Arc<Recorder>,
    event_fd: Arc<EventFd>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// This rank wants a diagnosis of what holds it up.
    wants_diagnosis: bool,
    /// The diagnosis.
    diagnosis: Option<Diagnosis>,
    /// On other ranks: when rank 0's last message came.
    last_received: Instant,
    /// This rank is done and wants to leave together with the others.
    leaving: bool,
    /// All ranks are done.
    complete: bool,
    /// The thread must end.
    stop: bool,
}

impl State {
    /// Whether there are still ranks to communicate with.
    fn is_open(&self) -> bool {
        !self.complete && !self.stop
    }
}

/// Status queries that the thread is working on.
#[derive(Default)]
struct StatusQueries {
    /// On rank 0: answers are being collected.
    query: Option<StatusQuery>,
    /// Elsewhere: when to answer.
    answer_at: Option<Instant>,
}

impl Control {
    /// Starts to monitor the connections: from rank 0 to every other rank, or from another rank to rank 0.
    pub(in crate::join) fn start(
        streams: Vec<(usize, (TcpStream, Session))>,
        unreachable: Duration,
        fault: Arc<Fault>,
        recorder: Arc<Recorder>,
    ) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::System {
            what: "set up the control connections",
            reason: error.to_string(),
        };
        let event_fd = Arc::new(EventFd::new()?);
        fault.watch(&event_fd);
        let mut connections = Vec::new();
        for (rank, (stream, session)) in streams {
            stream.set_nonblocking(true).map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(unreachable)).map_err(failed)?;
            connections.push(Connection::new(rank, SealedStream::new(stream, session, 0)));
        }
        let state = State {
            wants_diagnosis: false,
            diagnosis: None,
            last_received: Instant::now(),
            leaving: false,
            complete: false,
            stop: false,
        };
        let plane = Arc::new(ControlPlane {
            rank: recorder.rank,
            unreachable,
            fault,
            recorder,
            event_fd,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let thread = std::thread::Builder::new()
            .name("brigade control".into())
            .spawn({
                let plane = plane.clone();
                move || plane.run(connections)
            })
            .map_err(failed)?;
        Ok(Self { plane, thread: Some(thread) })
    }

    /// Reports that this rank is done, and waits until all ranks are; false if they are not within `wait`.
    pub(in crate::join) fn leave(&self, wait: Duration) -> Result<bool, Error> {
        let ControlPlane { rank, fault, event_fd, state, changed, .. } = &*self.plane;
        let deadline = Instant::now() + wait;
        let mut state = lock(state);
        state.leaving = true;
        event_fd.notify();
        let mut in_time = true;
        while !state.complete && in_time {
            fault.check(*rank)?;
            (state, in_time) = wait_until(changed, state, deadline);
        }
        Ok(state.complete)
    }
}

impl Drop for Control {
    /// Ends the thread, after it has passed on any failure.
    fn drop(&mut self) {
        lock(&self.plane.state).stop = true;
        self.plane.changed.notify_all();
        self.plane.event_fd.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ControlPlane {
    /// Finds out what holds up this rank. Takes as long as the slowest rank that answers, and a few seconds at most.
    pub(in crate::join) fn diagnose(&self) -> Diagnosis {
        let deadline = Instant::now() + DIAGNOSIS;
        let mut state = lock(&self.state);
        state.wants_diagnosis = true;
        self.event_fd.notify();
        let mut in_time = true;
        while state.diagnosis.is_none() && state.is_open() && in_time && self.fault.get().is_none() {
            (state, in_time) = wait_until(&self.changed, state, deadline);
        }
        match &state.diagnosis {
            Some(diagnosis) => diagnosis.clone(),
            None if self.rank == 0 || in_time => Diagnosis::default(),
            None => unresponsive(0, state.last_received.elapsed()),
        }
    }

    /// Rank 0, if it has been silent for so long that it must have stalled.
    pub(in crate::join) fn unresponsive_rank_0(&self) -> Option<StalledRank> {
        let (ago, is_open) = {
            let state = lock(&self.state);
            (state.last_received.elapsed(), state.is_open())
        };
        (self.rank != 0 && is_open && ago > SILENT)
            .then(|| unresponsive(0, ago).root)
            .and_then(|mut root| root.pop())
    }

    fn run(&self, mut connections: Vec<Connection>) {
        let (mut announced, mut is_done) = (false, false);
        let mut last_ping = Instant::now();
        let mut queries = StatusQueries::default();
        loop {
            let (leaving, stop, wants_diagnosis) = {
                let mut state = lock(&self.state);
                (state.leaving, state.stop, std::mem::take(&mut state.wants_diagnosis))
            };
            if wants_diagnosis {
                self.ask(&mut connections, &mut queries, 0);
            }
            if let Some(failure) = self.fault.get().filter(|_| !announced) {
                announced = true;
                self.send_all(&mut connections, &announcement(failure), failure.origin);
                self.changed.notify_all();
            }
            if leaving && !announced {
                if self.rank == 0 && connections.iter().all(|connection| connection.is_done) {
                    self.send_all(&mut connections, &Message::AllDone, self.rank);
                    return self.complete();
                }
                if self.rank != 0 && !is_done {
                    is_done = true;
                    self.send_all(&mut connections, &Message::Done, self.rank);
                }
            }
            if stop {
                return;
            }
            let open = connections.iter().filter(|connection| connection.open);
            let awaited: Vec<_> = open.map(|c| (c.stream.as_fd(), PollFlags::IN)).collect();
            let mut nap = PING.saturating_sub(last_ping.elapsed());
            if let Some(query) = &queries.query {
                nap = nap.min(query.time_left(awaited.len()));
            }
            if let Some(at) = queries.answer_at {
                nap = nap.min(at.saturating_duration_since(Instant::now()));
            }
            self.event_fd.wait(&awaited, nap);
            let mut requests = Vec::new();
            for connection in connections.iter_mut().filter(|connection| connection.open) {
                match self.listen(connection, &mut queries) {
                    Received::AllDone => return self.complete(),
                    Received::Question => requests.push(connection.rank),
                    Received::Nothing => {}
                }
            }
            for rank in requests {
                self.ask(&mut connections, &mut queries, rank);
            }
            self.answer(&mut connections, &mut queries);
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

    /// Requests a diagnosis for this rank or, on rank 0, for another one.
    fn ask(&self, connections: &mut [Connection], queries: &mut StatusQueries, asker: usize) {
        if self.rank != 0 {
            return self.send_all(connections, &Message::StatusRequest, self.rank);
        }
        if queries.query.is_none() {
            self.recorder.request_status();
            self.fault.wake_all();
            self.send_all(connections, &Message::StatusRequest, self.rank);
        }
        queries.query.get_or_insert_with(StatusQuery::new).add_asker(asker);
    }

    /// Sends the answers that are due.
    fn answer(&self, connections: &mut [Connection], queries: &mut StatusQueries) {
        if queries.answer_at.is_some_and(|at| at <= Instant::now()) {
            queries.answer_at = None;
            self.send_all(connections, &Message::Status(self.recorder.status()), self.rank);
        }
        if self.fault.get().is_some() {
            // The failure says more than any diagnosis.
            queries.query = None;
        }
        let open = || connections.iter().filter(|connection| connection.open);
        let due = |query: &mut StatusQuery| query.time_left(open().count()).is_zero();
        let Some(query) = queries.query.take_if(due) else { return };
        let last: Vec<_> = open().map(|connection| (connection.rank, connection.last_received)).collect();
        for (asker, diagnosis) in query.close(self.recorder.status(), last.into_iter()) {
            match connections.iter_mut().find(|connection| connection.open && connection.rank == asker) {
                Some(connection) => deliver(connection, &Message::Diagnosis(diagnosis)),
                None => self.set_diagnosis(diagnosis),
            }
        }
    }

    /// The answer to this rank's question.
    fn set_diagnosis(&self, diagnosis: Diagnosis) {
        lock(&self.state).diagnosis = Some(diagnosis);
        self.changed.notify_all();
    }

    /// Reads what has arrived on a connection.
    fn listen(&self, connection: &mut Connection, queries: &mut StatusQueries) -> Received {
        let mut bytes = [0; 4096];
        let mut outcome = Received::Nothing;
        loop {
            match connection.stream.read(&mut bytes) {
                Ok(0) => return self.lost(connection, "its control connection closed"),
                Ok(count) => connection.received.push(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let waited = connection.stream.waited_for_rest().unwrap_or_default();
                    if waited < self.unreachable {
                        return outcome;
                    }
                    let reason =
                        format!("the rest of a message from it has not arrived for {} s", waited.as_secs());
                    return self.lost(connection, &reason);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_out_of_reach(&error) => {
                    let seconds = self.unreachable.as_secs_f64();
                    return self.lost(connection, &format!("its host has been unreachable for {seconds} s"));
                }
                Err(error) => {
                    return self.lost(connection, &format!("its control connection broke: {error}"));
                }
            }
            connection.last_received = Instant::now();
            if self.rank != 0 {
                lock(&self.state).last_received = connection.last_received;
            }
            loop {
                match connection.received.next() {
                    Ok(None) => break,
                    Ok(Some(Message::Ping)) => {}
                    Ok(Some(Message::Done)) => connection.is_done = true,
                    Ok(Some(Message::AllDone)) if connection.rank == 0 => return Received::AllDone,
                    Ok(Some(Message::Fault { origin, died, root, reason })) => {
                        let error = match died {
                            true => Error::PeerDied { peer: origin, reason },
                            false if root.is_empty() => Error::PeerFailed { peer: origin, reason },
                            false => Error::HeldUp { peer: origin, root, reason },
                        };
                        self.fault.raise(origin, error);
                    }
                    Ok(Some(Message::StatusRequest)) if self.rank == 0 => outcome = Received::Question,
                    Ok(Some(Message::StatusRequest)) => {
                        self.recorder.request_status();
                        self.fault.wake_all();
                        queries.answer_at = Some(Instant::now() + STATUS_DELAY);
                    }
                    Ok(Some(Message::Status(status))) if self.rank == 0 => {
                        if let Some(query) = &mut queries.query {
                            query.add(connection.rank, status);
                        }
                    }
                    Ok(Some(Message::Diagnosis(diagnosis))) if self.rank != 0 => {
                        self.set_diagnosis(diagnosis)
                    }
                    Ok(Some(message)) => return self.lost(connection, &format!("it sent {message:?}")),
                    Err(reason) => return self.lost(connection, &reason),
                }
            }
        }
    }

    fn lost(&self, connection: &mut Connection, reason: &str) -> Received {
        connection.open = false;
        if !connection.is_done {
            let error = Error::PeerDied { peer: connection.rank, reason: reason.into() };
            self.fault.raise(connection.rank, error);
        }
        Received::Nothing
    }

    /// Sends to all ranks but `except`.
    fn send_all(&self, connections: &mut [Connection], message: &Message, except: usize) {
        let others = connections.iter_mut().filter(|connection| connection.open && connection.rank != except);
        others.for_each(|connection| deliver(connection, message));
    }
}

/// A message that concerns more than its connection.
enum Received {
    Nothing,
    /// All ranks are done.
    AllDone,
    /// On rank 0: the other rank wants a diagnosis.
    Question,
}

/// Whether a connection ended because nothing that was sent has been acknowledged for too long.
fn is_out_of_reach(error: &std::io::Error) -> bool {
    use ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
}

fn announcement(failure: &Failure) -> Message {
    let origin = failure.origin;
    let (died, root, mut reason) = match failure.error.for_others(origin) {
        Error::PeerDied { reason, .. } => (true, Vec::new(), reason),
        Error::PeerFailed { reason, .. } => (false, Vec::new(), reason),
        Error::HeldUp { root, reason, .. } => (false, root, reason),
        error => (false, Vec::new(), error.to_string()),
    };
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    Message::Fault { origin, died, root, reason }
}
