//! Node 0's side: it accepts connections, and keeps those who wait.

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use brigade_comm::{AuthToken, Channel, ConnectionListener};

use super::{
    admission::mismatch,
    message::{Candidate, RendezvousReply, RendezvousRequest, Start, receive, send},
};
use crate::error::{Error, Result};

/// How often those who wait hear from node 0, and answer.
pub const HERE_EVERY: Duration = Duration::from_millis(250);

/// How long a node may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Connections at the same time; further ones are closed, and come again.
const MAX_CONNECTIONS: usize = 256;

/// Between two looks whether they have heard it.
const POLL: Duration = Duration::from_millis(20);

/// How long those who wait may take to hear how the run ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// The listener of node 0, until it is dropped: those who wait then hear that the run is over.
pub struct Host {
    shared: Arc<Shared>,
    connections: ConnectionListener,
}

/// A node that waits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitingNode {
    pub node: usize,
    pub host: String,
}

struct Shared {
    own: Candidate,
    token: AuthToken,
    host_timeout: Duration,
    /// Those who wait, in no order.
    waiting: Mutex<Vec<Seat>>,
    /// The nodes that take part now.
    members: Mutex<Vec<(usize, String)>>,
    /// The seats that were given so far.
    seats: AtomicUsize,
    /// Whether the run is done, for those who wait when this is dropped.
    is_done: AtomicBool,
}

struct Seat {
    id: usize,
    candidate: Candidate,
    decision: Sender<RendezvousReply>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Accepts connections at `listener` from now on. `own` describes node 0.
    pub fn start(
        listener: TcpListener,
        own: Candidate,
        token: AuthToken,
        host_timeout: Duration,
    ) -> Result<Self> {
        let (waiting, members, seats) = (Mutex::new(vec![]), Mutex::new(vec![]), AtomicUsize::new(0));
        let is_done = AtomicBool::new(false);
        let shared = Arc::new(Shared { own, token, host_timeout, waiting, members, seats, is_done });
        let attending = Arc::clone(&shared);
        let connections =
            ConnectionListener::listen(listener, "rendezvous", MAX_CONNECTIONS, move |stream, _| {
                attending.attend(stream)
            });
        let connections =
            connections.map_err(|source| Error::System { operation: "listen for other nodes", source })?;
        Ok(Self { shared, connections })
    }

    /// The nodes that wait, by their number.
    pub fn waiting(&self) -> Vec<WaitingNode> {
        let waiting = lock(&self.shared.waiting);
        let waiting_node = |Seat { candidate, .. }: &Seat| WaitingNode {
            node: candidate.node,
            host: candidate.host.clone(),
        };
        let mut found: Vec<_> = waiting.iter().map(waiting_node).collect();
        found.sort();
        found
    }

    /// The most that any of those who wait knows of: starts after the first, and failures.
    pub fn counts(&self) -> (u32, u32) {
        let waiting = lock(&self.shared.waiting);
        let most = |count: fn(&Candidate) -> u32| {
            waiting.iter().map(|seat| count(&seat.candidate)).max().unwrap_or(0)
        };
        (most(|candidate| candidate.restart_count), most(|candidate| candidate.failures))
    }

    /// Sets which nodes take part: a further one with the number of one of them is refused.
    pub fn set_members(&self, members: &[(usize, String)]) {
        members.clone_into(&mut lock(&self.shared.members));
    }

    /// Lets the nodes of a start take part. Those who are not among them keep waiting.
    pub fn begin(&self, start: &Start) {
        let is_member = |seat: &Seat| start.nodes.iter().any(|(node, _)| *node == seat.candidate.node);
        self.set_members(&start.nodes);
        self.decide(is_member, &RendezvousReply::Start(start.clone()));
    }

    /// Sends all who wait away.
    pub fn refuse_all(&self, reason: &str) {
        self.decide(|_| true, &RendezvousReply::Refused { reason: reason.into(), again: false });
    }

    /// Whoever waits from now on is told that the run is done, when this is dropped.
    pub fn set_done(&self) {
        self.shared.is_done.store(true, Ordering::SeqCst);
    }

    fn decide(&self, concerns: impl Fn(&Seat) -> bool, answer: &RendezvousReply) {
        let mut waiting = lock(&self.shared.waiting);
        let (decided, rest) = std::mem::take(&mut *waiting).into_iter().partition(concerns);
        *waiting = rest;
        let decided: Vec<Seat> = decided;
        // Who has hung up meanwhile connects again.
        decided.iter().for_each(|seat| drop(seat.decision.send(answer.clone())));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.connections.close();
        let is_done = self.shared.is_done.load(Ordering::SeqCst);
        self.decide(|_| true, &RendezvousReply::Over { is_done });
        let deadline = Instant::now() + FAREWELL;
        while self.connections.running() > 0 && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }
}

impl Shared {
    /// One connection from its begin to its end. Whatever breaks it, the other node finds out and connects again.
    fn attend(&self, stream: TcpStream) {
        let Ok(mut channel) = Channel::accept(stream, &self.token) else { return };
        let Ok(RendezvousRequest::Join(candidate)) = receive(&mut channel, INTRODUCTION) else { return };
        match self.admit(candidate) {
            Err(refused) => drop(send(&mut channel, &refused, INTRODUCTION)),
            Ok((id, decision)) => {
                self.wait_with(&mut channel, &decision);
                lock(&self.waiting).retain(|seat| seat.id != id);
            }
        }
    }

    fn wait_with(&self, channel: &mut Channel, decision: &Receiver<RendezvousReply>) {
        loop {
            match decision.recv_timeout(HERE_EVERY) {
                Ok(answer) => return drop(send(channel, &answer, INTRODUCTION)),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let alive = send(channel, &RendezvousReply::Wait, self.host_timeout)
                .and_then(|()| receive::<RendezvousRequest>(channel, self.host_timeout));
            if alive.is_err() {
                return;
            }
        }
    }

    /// Gives a node a seat, or says why not.
    fn admit(&self, candidate: Candidate) -> Result<(usize, Receiver<RendezvousReply>), RendezvousReply> {
        let node = candidate.node;
        if let Some(reason) = mismatch(&self.own, &candidate) {
            return Err(RendezvousReply::Refused { reason, again: false });
        }
        let twice = |host: &str| RendezvousReply::Refused {
            reason: format!("there is already a node {node}, on {host}; give each node its own --node-rank"),
            // It may be lost, and node 0 has not noticed.
            again: true,
        };
        if let Some((_, host)) = lock(&self.members).iter().find(|(member, _)| *member == node) {
            return Err(twice(host));
        }
        let mut waiting = lock(&self.waiting);
        if let Some(seat) = waiting.iter().find(|seat| seat.candidate.node == node) {
            return Err(twice(&seat.candidate.host));
        }
        let (decision, answers) = channel();
        let id = self.seats.fetch_add(1, Ordering::SeqCst);
        waiting.push(Seat { id, candidate, decision });
        Ok((id, answers))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RendezvousEnd, join};
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);
    const HOST: Duration = Duration::from_secs(2);

    fn candidate(node: usize) -> Candidate {
        Candidate {
            version: 1,
            node,
            host: format!("h{node}"),
            nproc: 1,
            nodes: (1, 4),
            configuration: String::new(),
            restart_count: node as u32,
            failures: 0,
        }
    }

    fn token() -> AuthToken {
        AuthToken::new("a-token-of-a-world")
    }

    fn host() -> (Host, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        (Host::start(listener, candidate(0), token(), HOST).unwrap(), endpoint)
    }

    fn joining(
        endpoint: &str,
        candidate: Candidate,
        token: AuthToken,
    ) -> thread::JoinHandle<Result<Start, RendezvousEnd>> {
        let endpoint = endpoint.to_owned();
        thread::spawn(move || join(&endpoint, &token, &candidate, WAIT, HOST))
    }

    fn until(host: &Host, nodes: &[usize]) {
        let begin = Instant::now();
        while host.waiting().iter().map(|waiting| waiting.node).collect::<Vec<_>>() != nodes {
            assert!(begin.elapsed() < WAIT, "{:?}", host.waiting());
            thread::sleep(POLL);
        }
    }

    #[test]
    fn those_who_are_chosen_start_and_the_others_wait_until_the_end() {
        let (host, endpoint) = host();
        let joining_nodes = [2, 3, 1].map(|node| joining(&endpoint, candidate(node), token()));
        until(&host, &[1, 2, 3]);
        assert_eq!(host.counts(), (3, 0));
        let start = Start {
            nodes: vec![(0, "h0".into()), (2, "h2".into()), (3, "h3".into())],
            port: 5,
            restart_count: 4,
            failures: 1,
            max_restarts: 2,
            args: vec!["--dp".into()],
        };
        host.begin(&start);
        until(&host, &[1]);
        let [second, third, first] = joining_nodes;
        assert_eq!((second.join().unwrap(), third.join().unwrap()), (Ok(start.clone()), Ok(start)));
        host.set_done();
        drop(host);
        assert_eq!(first.join().unwrap(), Err(RendezvousEnd::Over { is_done: true }));
    }

    #[test]
    fn who_does_not_fit_is_told_why_and_disturbs_nobody() {
        let (host, endpoint) = host();
        let good = joining(&endpoint, candidate(1), token());
        until(&host, &[1]);
        let refused = |candidate, token| match joining(&endpoint, candidate, token).join().unwrap() {
            Err(RendezvousEnd::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let said = refused(Candidate { nproc: 2, ..candidate(2) }, token());
        assert!(said.starts_with("--nproc-per-node is 2 there, and 1 on node 0"), "{said}");
        let said = refused(candidate(2), AuthToken::new("another-token-than-theirs"));
        assert!(said.contains("BRIGADE_TOKEN"), "{said}");
        let begin = Instant::now();
        let said = refused(candidate(1), token());
        assert!(
            said.contains("there is already a node 1, on h1; give each node its own --node-rank"),
            "{said}"
        );
        assert!(begin.elapsed() > HOST, "it may be the replacement of a node that is lost");
        until(&host, &[1]);
        host.refuse_all("nobody starts");
        assert_eq!(good.join().unwrap(), Err(RendezvousEnd::Refused("nobody starts".into())));
    }

    #[test]
    fn a_seat_is_free_when_its_node_is_gone() {
        let (host, endpoint) = host();
        let mut channel = Channel::connect(&endpoint, &token(), WAIT).unwrap();
        send(&mut channel, &RendezvousRequest::Join(candidate(1)), WAIT).unwrap();
        until(&host, &[1]);
        drop(channel);
        until(&host, &[]);
        let again = joining(&endpoint, candidate(1), token());
        until(&host, &[1]);
        drop(host);
        assert_eq!(again.join().unwrap(), Err(RendezvousEnd::Over { is_done: false }));
    }

    #[test]
    fn a_thousand_connections_that_say_nothing_keep_no_node_away() {
        brigade_comm::raise_open_files();
        let (host, endpoint) = host();
        // More than are attended to at once: a node comes through when they have been silent for too long.
        let silent: Vec<_> = (0..1000).map(|_| TcpStream::connect(&endpoint).unwrap()).collect();
        let node = joining(&endpoint, candidate(1), token());
        until(&host, &[1]);
        assert!(host.connections.running() <= MAX_CONNECTIONS);
        host.refuse_all("nobody starts");
        assert_eq!(node.join().unwrap(), Err(RendezvousEnd::Refused("nobody starts".into())));
        drop(silent);
    }
}
