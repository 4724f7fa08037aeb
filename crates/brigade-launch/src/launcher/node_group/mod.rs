//! The launchers of a world's nodes among themselves.
//!
//! They form a small world of their own, one rank each, with node 0 as its rank 0. In lockstep, every [`TICK`],
//! they exchange a [`NodeStatus`] each; so all see the same tables in the same order and decide alike without asking
//! each other. A launcher that dies, is stopped or cut off for [`NodeGroupConfig::host_timeout`] fails the next tick of all others.

mod status;

use std::{
    io,
    net::TcpListener,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc::Sender},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use brigade_comm::{AuthToken, Group, Join, Timeouts, Transport, World};
use serde::{Serialize, de::DeserializeOwned};

use self::status::BYTES;
pub use self::status::{NodeDescription, NodeState, NodeStatus, StopCause};
use crate::{
    Error, Result,
    supervisor::{Message, NodeReport},
};

/// Between two exchanges.
pub const TICK: Duration = Duration::from_millis(250);

/// Between two tries to meet.
const RETRY: Duration = Duration::from_millis(200);

/// How much longer than [`NodeGroupConfig::host_timeout`] a launcher that was started again is refused by a node 0 that has not
/// noticed yet that its predecessor is gone.
const REFUSALS: Duration = Duration::from_secs(5);

/// The longest text that a launcher takes from another, in bytes.
const MAX_TEXT: usize = 16 << 20;

/// What the other launchers have to say.
pub enum NodeEvent {
    /// All launchers are there; what each of them said.
    Joined(Vec<NodeDescription>),
    /// They did not all come.
    JoinFailed(brigade_comm::Error),
    /// The statuses of all nodes, and when they had come. That is the same moment everywhere, but for the time of a
    /// message.
    Statuses(Instant, Vec<NodeStatus>),
    /// All nodes' ranks have ended: what each node reports.
    Reports(Vec<NodeReport>),
    /// All launchers wanted to leave and did.
    Left,
    /// A launcher is gone. Nothing comes after this.
    Lost(LostNode),
}

/// A node whose launcher is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostNode {
    pub node: Option<usize>,
    pub reason: String,
    /// When, since the ranks were started.
    pub after: Option<Duration>,
}

/// Where and how the launchers meet.
pub struct NodeGroupConfig {
    pub node: usize,
    pub nnodes: usize,
    pub endpoint: String,
    /// Node 0's socket at the endpoint.
    pub listener: Option<TcpListener>,
    pub token: String,
    pub timeout: Duration,
    /// How long a launcher may keep the others waiting, or be out of reach, before it counts as lost. One that died is
    /// noticed at once.
    pub host_timeout: Duration,
    /// Whether they have met before: what goes wrong is then tried again until the timeout, as launchers come and
    /// go.
    pub again: bool,
    pub description: NodeDescription,
}

/// This launcher among the others. Dropped, it tells them that it is gone, unless all have left.
pub struct NodeGroup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// What the next tick tells, and this node's report once its ranks have ended.
    own: Mutex<(NodeStatus, Vec<u8>)>,
    /// Set once the launchers have met.
    group: OnceLock<Group>,
}

impl NodeGroup {
    /// Starts the thread that meets the others and exchanges statuses with them. What it learns goes to `sender`.
    pub fn start(meeting: NodeGroupConfig, sender: Sender<Message>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let exchange = Exchange { shared: Arc::clone(&shared), sender };
        let started = thread::Builder::new().name("nodes".into()).spawn(move || exchange.run(meeting));
        let thread = started.map_err(|source| Error::System { operation: "start a thread", source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets what the next tick tells the others; with `NodeState::Finished` goes this node's report.
    pub fn publish(&self, status: NodeStatus, report: Option<&NodeReport>) {
        let mut own = self.shared.own();
        own.0 = status;
        if let Some(report) = report {
            // Serializing plain data to memory cannot fail; the others would say that they cannot read it.
            own.1 = serde_json::to_vec(report).unwrap_or_default();
        }
    }

    /// Tells the others why this launcher goes.
    pub fn abort(&self, reason: &str) {
        if let Some(group) = self.shared.group.get() {
            group.abort(reason);
        }
    }
}

impl Drop for NodeGroup {
    fn drop(&mut self) {
        // While they have not met, nothing ends the thread but the deadline of the meeting, or the process.
        if self.shared.group.get().is_some()
            && let Some(thread) = self.thread.take()
        {
            self.abort("its launcher has ended");
            // It has nothing to say any more.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn own(&self) -> MutexGuard<'_, (NodeStatus, Vec<u8>)> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread.
struct Exchange {
    shared: Arc<Shared>,
    sender: Sender<Message>,
}

impl Exchange {
    fn run(self, meeting: NodeGroupConfig) {
        let news = match meet(&meeting) {
            Err(error) => NodeEvent::JoinFailed(error),
            Ok((world, descriptions)) => {
                // The thread runs once.
                drop(self.shared.group.set(world.group().clone()));
                self.tell(NodeEvent::Joined(descriptions));
                match self.ticks(world) {
                    Ok(()) => NodeEvent::Left,
                    Err(error) => NodeEvent::Lost(lost(error)),
                }
            }
        };
        self.tell(news);
    }

    fn tell(&self, news: NodeEvent) {
        // The supervisor may have stopped listening.
        drop(self.sender.send(Message::Node(news)));
    }

    /// Ends when all leave. Nobody listens at the endpoint any more when the supervisor hears of the end.
    fn ticks(&self, world: World) -> brigade_comm::Result<()> {
        let group = world.group();
        let mut reported = None;
        loop {
            thread::sleep(TICK);
            let status = self.shared.own().0;
            let table = tick(group, status)?;
            let all =
                |state| table.iter().all(|status| status.state == state && status.round == table[0].round);
            let (ended, leaving) = (all(NodeState::Finished), all(NodeState::Leaving));
            let round = table[0].round;
            self.tell(NodeEvent::Statuses(Instant::now(), table));
            if leaving {
                return world.shutdown();
            }
            if ended && reported != Some(round) {
                reported = Some(round);
                let report = self.shared.own().1.clone();
                self.tell(NodeEvent::Reports(exchange(group, report)?));
            }
        }
    }
}

/// Meets the other launchers.
fn meet(meeting: &NodeGroupConfig) -> brigade_comm::Result<(World, Vec<NodeDescription>)> {
    let begin = Instant::now();
    let refusals = meeting.host_timeout + REFUSALS;
    let patience = if meeting.again { meeting.timeout } else { refusals.min(meeting.timeout) };
    loop {
        match try_to_meet(meeting, meeting.timeout.saturating_sub(begin.elapsed())) {
            Err(error) if begin.elapsed() + RETRY < patience && may_pass(&error, meeting.again) => {
                thread::sleep(RETRY);
            }
            met => return met,
        }
    }
}

fn try_to_meet(
    meeting: &NodeGroupConfig,
    init: Duration,
) -> brigade_comm::Result<(World, Vec<NodeDescription>)> {
    let system = |error: io::Error| brigade_comm::Error::System {
        what: "share the socket of the rendezvous",
        reason: error.to_string(),
    };
    let world = brigade_comm::join(Join {
        rank: meeting.node,
        world_size: meeting.nnodes,
        endpoint: meeting.endpoint.clone(),
        listener: meeting.listener.as_ref().map(TcpListener::try_clone).transpose().map_err(system)?,
        token: AuthToken::new(meeting.token.clone()),
        // One that was started again cannot know.
        restart: 0,
        transport: Transport::Tcp,
        timeouts: Timeouts { init, step: meeting.host_timeout, host: meeting.host_timeout },
        host: None,
    })?;
    let text = serde_json::to_vec(&meeting.description).unwrap_or_default();
    let descriptions = exchange(world.group(), text)?;
    Ok((world, descriptions))
}

/// Whether the next try to meet may go better: a node 0 that is about to notice a loss refuses newcomers, and
/// launchers may come and die while the others still wait.
fn may_pass(error: &brigade_comm::Error, again: bool) -> bool {
    use brigade_comm::Error as E;
    match error {
        E::Refused { reason, .. } => !reason.contains("token"),
        E::PeerDied { .. } | E::PeerFailed { .. } | E::Connect { .. } => true,
        E::Rendezvous { .. } => again,
        _ => false,
    }
}

/// One exchange of statuses.
fn tick(group: &Group, status: NodeStatus) -> brigade_comm::Result<Vec<NodeStatus>> {
    let mut bytes = vec![0u8; group.size() * BYTES];
    bytes[group.rank() * BYTES..][..BYTES].copy_from_slice(&status.encode());
    group.all_gather_in_place(&mut bytes)?;
    bytes.chunks_exact(BYTES).enumerate().map(|(node, bytes)| read(node, NodeStatus::decode(bytes))).collect()
}

/// Gives everybody's text to everybody, as what it stands for.
fn exchange<T: Serialize + DeserializeOwned>(group: &Group, own: Vec<u8>) -> brigade_comm::Result<Vec<T>> {
    let mut sizes = vec![0i64; group.size()];
    sizes[group.rank()] = i64::try_from(own.len()).unwrap_or(i64::MAX);
    group.all_gather_in_place(&mut sizes)?;
    let text = |(node, size): (usize, i64)| {
        let size = read(node, usize::try_from(size).ok().filter(|size| (1..=MAX_TEXT).contains(size)))?;
        let mut text = if node == group.rank() { own.clone() } else { vec![0; size] };
        group.broadcast_in_place(&mut text, node)?;
        read(node, serde_json::from_slice(&text).ok())
    };
    sizes.into_iter().enumerate().map(text).collect()
}

/// What a launcher sent, or who sent what cannot be read.
fn read<T>(node: usize, found: Option<T>) -> brigade_comm::Result<T> {
    let reason = "it sent something that this launcher cannot read; is it another version?".into();
    found.ok_or(brigade_comm::Error::PeerFailed { peer: node, reason })
}

/// Which node is gone, in the words of nodes.
fn lost(error: brigade_comm::Error) -> LostNode {
    use brigade_comm::Error as E;
    let (node, reason) = match error {
        E::PeerDied { peer, reason } => (Some(peer), reason),
        E::PeerFailed { peer, reason } => match reason.strip_prefix(&format!("rank {peer} aborted: ")) {
            Some(why) => (Some(peer), why.to_owned()),
            // What another launcher noticed: its text names who it misses.
            None => (None, format!("launcher {peer} says: {reason} (a launcher's rank is its node)")),
        },
        E::Timeout { absent, stalled, waited, .. } => {
            let reason = format!("its launcher gave no sign of life for {} s", waited.as_secs());
            (absent.first().or(stalled.first()).copied(), reason)
        }
        other => (None, other.to_string()),
    };
    LostNode { node, reason, after: None }
}
