//! Node 0's side: it accepts connections, and keeps those of nodes that wait for a start.

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
    message::{NodeJoinRequest, RendezvousReply, RendezvousRequest, Start, receive, send},
};
use crate::error::{Error, Result};

/// How often node 0 and a node that waits tell each other that they are alive.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(250);

/// How long a new connection may take to send its request, and to take the answer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at the same time; further ones are closed, and come again.
const MAX_CONNECTIONS: usize = 256;

/// Between two checks whether all connections have ended.
const POLL: Duration = Duration::from_millis(20);

/// How long nodes that wait may take to receive how the run ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The listener of node 0. When it is dropped, nodes that wait are told that the run is over.
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
    own: NodeJoinRequest,
    token: AuthToken,
    host_timeout: Duration,
    /// In no order.
    waiting: Mutex<Vec<PendingJoin>>,
    /// The nodes that take part now.
    members: Mutex<Vec<(usize, String)>>,
    /// The id of the next [`PendingJoin`].
    next_id: AtomicUsize,
    /// Whether the run is done, which nodes that wait are told when this is dropped.
    is_done: AtomicBool,
}

/// A node that waits for a start.
struct PendingJoin {
    id: usize,
    request: NodeJoinRequest,
    decision: Sender<RendezvousReply>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Accepts connections at `listener` from now on. `own` describes node 0.
    pub fn start(
        listener: TcpListener,
        own: NodeJoinRequest,
        token: AuthToken,
        host_timeout: Duration,
    ) -> Result<Self> {
        let (waiting, members, next_id) = (Mutex::new(vec![]), Mutex::new(vec![]), AtomicUsize::new(0));
        let is_done = AtomicBool::new(false);
        let shared = Arc::new(Shared { own, token, host_timeout, waiting, members, next_id, is_done });
        let shared_by_connections = Arc::clone(&shared);
        let connections =
            ConnectionListener::listen(listener, "rendezvous", MAX_CONNECTIONS, move |stream, _| {
                shared_by_connections.serve(stream)
            });
        let connections =
            connections.map_err(|source| Error::System { operation: "listen for other nodes", source })?;
        Ok(Self { shared, connections })
    }

    /// The nodes that wait, by their number.
    pub fn waiting(&self) -> Vec<WaitingNode> {
        let waiting = lock(&self.shared.waiting);
        let waiting_node = |PendingJoin { request, .. }: &PendingJoin| WaitingNode {
            node: request.node,
            host: request.host.clone(),
        };
        let mut found: Vec<_> = waiting.iter().map(waiting_node).collect();
        found.sort();
        found
    }

    /// The most that any waiting node knows of: starts after the first, and failures.
    pub fn counts(&self) -> (u32, u32) {
        let waiting = lock(&self.shared.waiting);
        let most = |count: fn(&NodeJoinRequest) -> u32| {
            waiting.iter().map(|pending| count(&pending.request)).max().unwrap_or(0)
        };
        (most(|request| request.restart_count), most(|request| request.failures))
    }

    /// Sets which nodes take part: another one with the number of one of these is refused.
    pub fn set_members(&self, members: &[(usize, String)]) {
        members.clone_into(&mut lock(&self.shared.members));
    }

    /// Lets the nodes of a start take part. The others keep waiting.
    pub fn begin(&self, start: &Start) {
        let is_member =
            |pending: &PendingJoin| start.nodes.iter().any(|(node, _)| *node == pending.request.node);
        self.set_members(&start.nodes);
        self.decide(is_member, &RendezvousReply::Start(start.clone()));
    }

    /// Refuses all nodes that wait.
    pub fn refuse_all(&self, reason: &str) {
        self.decide(|_| true, &RendezvousReply::Refused { reason: reason.into(), again: false });
    }

    /// From now on, nodes that wait when this is dropped are told that the run is done.
    pub fn set_done(&self) {
        self.shared.is_done.store(true, Ordering::SeqCst);
    }

    fn decide(&self, concerns: impl Fn(&PendingJoin) -> bool, answer: &RendezvousReply) {
        let mut waiting = lock(&self.shared.waiting);
        let (decided, rest) = std::mem::take(&mut *waiting).into_iter().partition(concerns);
        *waiting = rest;
        let decided: Vec<PendingJoin> = decided;
        // A node whose connection has broken meanwhile connects again.
        decided.iter().for_each(|pending| drop(pending.decision.send(answer.clone())));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.connections.close();
        let is_done = self.shared.is_done.load(Ordering::SeqCst);
        self.decide(|_| true, &RendezvousReply::Over { is_done });
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        while self.connections.running() > 0 && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }
}

impl Shared {
    /// Serves one connection until it ends. If it breaks, the other node notices and connects again.
    fn serve(&self, stream: TcpStream) {
        let Ok(mut channel) = Channel::accept(stream, &self.token) else { return };
        let Ok(RendezvousRequest::Join(request)) = receive(&mut channel, HANDSHAKE_TIMEOUT) else { return };
        match self.admit(request) {
            Err(refused) => drop(send(&mut channel, &refused, HANDSHAKE_TIMEOUT)),
            Ok((id, decision)) => {
                self.wait_with(&mut channel, &decision);
                lock(&self.waiting).retain(|pending| pending.id != id);
            }
        }
    }

    fn wait_with(&self, channel: &mut Channel, decision: &Receiver<RendezvousReply>) {
        loop {
            match decision.recv_timeout(KEEPALIVE_INTERVAL) {
                Ok(answer) => return drop(send(channel, &answer, HANDSHAKE_TIMEOUT)),
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

    /// Adds a node to those that wait, or says why not.
    fn admit(&self, request: NodeJoinRequest) -> Result<(usize, Receiver<RendezvousReply>), RendezvousReply> {
        let node = request.node;
        if let Some(reason) = mismatch(&self.own, &request) {
            return Err(RendezvousReply::Refused { reason, again: false });
        }
        let twice = |host: &str| RendezvousReply::Refused {
            reason: format!("there is already a node {node}, on {host}; give each node its own --node-rank"),
            // The other one may be lost without node 0 having noticed.
            again: true,
        };
        if let Some((_, host)) = lock(&self.members).iter().find(|(member, _)| *member == node) {
            return Err(twice(host));
        }
        let mut waiting = lock(&self.waiting);
        if let Some(pending) = waiting.iter().find(|pending| pending.request.node == node) {
            return Err(twice(&pending.request.host));
        }
        let (decision, answers) = channel();
        let id = self.next_id.fetch_add(1, Ordering::SeqCst);
        waiting.push(PendingJoin { id, request, decision });
        Ok((id, answers))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RendezvousEnd, join};
    use super::*;

    const WAIT: Duration = Duration::from_secs(60);
    const HOST: Duration = Duration::from_secs(2);

    fn join_request(node: usize) -> NodeJoinRequest {
        NodeJoinRequest {
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
        (Host::start(listener, join_request(0), token(), HOST).unwrap(), endpoint)
    }

    fn joining(
        endpoint: &str,
        request: NodeJoinRequest,
        token: AuthToken,
    ) -> thread::JoinHandle<Result<Start, RendezvousEnd>> {
        let endpoint = endpoint.to_owned();
        thread::spawn(move || join(&endpoint, &token, &request, WAIT, HOST))
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
        let joining_nodes = [2, 3, 1].map(|node| joining(&endpoint, join_request(node), token()));
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
        let good = joining(&endpoint, join_request(1), token());
        until(&host, &[1]);
        let refused = |request, token| match joining(&endpoint, request, token).join().unwrap() {
            Err(RendezvousEnd::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let said = refused(NodeJoinRequest { nproc: 2, ..join_request(2) }, token());
        assert!(said.starts_with("--nproc-per-node is 2 there, and 1 on node 0"), "{said}");
        let said = refused(join_request(2), AuthToken::new("another-token-than-theirs"));
        assert!(said.contains("BRIGADE_TOKEN"), "{said}");
        let begin = Instant::now();
        let said = refused(join_request(1), token());
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
    fn a_node_number_is_free_when_its_node_is_gone() {
        let (host, endpoint) = host();
        let mut channel = Channel::connect(&endpoint, &token(), WAIT).unwrap();
        send(&mut channel, &RendezvousRequest::Join(join_request(1)), WAIT).unwrap();
        until(&host, &[1]);
        drop(channel);
        until(&host, &[]);
        let again = joining(&endpoint, join_request(1), token());
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
        let node = joining(&endpoint, join_request(1), token());
        until(&host, &[1]);
        assert!(host.connections.running() <= MAX_CONNECTIONS);
        host.refuse_all("nobody starts");
        assert_eq!(node.join().unwrap(), Err(RendezvousEnd::Refused("nobody starts".into())));
        drop(silent);
    }
}
