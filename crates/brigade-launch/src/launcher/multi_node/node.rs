//! This node among the others: each start of the ranks, what is decided after it, and the next.

use std::{
    net::TcpListener,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use super::node_count_args::NodeCountArgs;
use crate::launcher::{
    config::LaunchConfig,
    listener,
    local_ranks::{LocalRanks, LocalRanksResult, start_ranks},
    message::{Message, receive_between_restarts},
    node_group::{NodeEvent, NodeGroup, NodeState, NodeStatus, StopCause},
    outcome::{
        Outcome, decision::Decision, event::Event, failure::NodeFailure, rank_exit::signal_name,
        report::LostNode,
    },
    process::{RankZero, StartInfo, Terminal},
    rendezvous::Host,
};
use crate::{
    endpoint::Endpoint,
    error::{Error, Result},
    interrupt::InterruptKind,
};

/// How much longer than the launchers' own deadline this one waits to hear from them.
pub const MARGIN: Duration = Duration::from_secs(10);

/// How long the launchers may take to leave together.
const LEAVE: Duration = Duration::from_secs(10);

pub fn run(
    launch: &LaunchConfig,
    host: String,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Outcome> {
    let Some(endpoint) = launch.endpoint.clone() else {
        let allowed = "several nodes need the address of node 0".into();
        return Err(Error::LaunchConfig { field: "endpoint", value: "not set".into(), allowed });
    };
    let listener = match launch.node_rank {
        0 => Some(listener::bind(Some(&endpoint), launch.nnodes)?.0),
        _ => None,
    };
    let mut node = Node {
        config: launch,
        node_count_args: NodeCountArgs::new(&launch.elastic),
        launch: launch.clone(),
        sender,
        messages,
        endpoint,
        listener,
        rendezvous: None,
        host,
        nodes: vec![],
        expected: vec![],
        unused: None,
        failures: 0,
        max_restarts: 0,
        node_group: None,
    };
    if launch.is_elastic()
        && let Some(listener) = node.listener.take()
    {
        let rendezvous =
            Host::start(listener, node.join_request(0), launch.token.clone(), launch.host_timeout)?;
        node.rendezvous = Some(rendezvous);
    }
    node.run(on_event)
}

/// This node among the others.
pub struct Node<'a> {
    pub(super) config: &'a LaunchConfig,
    pub(super) node_count_args: NodeCountArgs<'a>,
    /// For the present start: in an elastic world with its number of nodes, this node's number among them, and their arguments.
    pub(super) launch: LaunchConfig,
    pub(super) sender: Sender<Message>,
    pub(super) messages: Receiver<Message>,
    /// Where the launchers meet.
    pub(super) endpoint: Endpoint,
    /// On node 0, bound to the endpoint throughout; in an elastic world it belongs to the rendezvous.
    pub(super) listener: Option<TcpListener>,
    /// On node 0 of an elastic world.
    pub(super) rendezvous: Option<Host>,
    pub(super) host: String,
    /// The nodes of the present start: the numbers that users know them by, and their hosts.
    pub(super) nodes: Vec<(usize, String)>,
    /// The nodes that are waited for before the next start; none if that is all that may come.
    pub(super) expected: Vec<usize>,
    /// Why not all nodes that have come are used.
    pub(super) unused: Option<String>,
    /// How often the ranks were started again because of a failure.
    pub(super) failures: u32,
    pub(super) max_restarts: u32,
    /// The group of all launchers, while this one is a member.
    pub(super) node_group: Option<NodeGroup>,
}

/// The result of waiting for the other nodes.
pub enum Waited<T> {
    Ready(T),
    /// A launcher got a signal.
    Ended(Outcome),
    Lost(LostNode),
}

/// What is needed to start the ranks.
struct ReadyStart {
    start: StartInfo,
    listener: Option<TcpListener>,
    epoch: Instant,
}

impl Node<'_> {
    fn run(mut self, on_event: &mut dyn FnMut(Event)) -> Result<Outcome> {
        let mut restart_count = 0;
        let mut last: Option<Outcome> = None;
        loop {
            if self.node_group.is_none() {
                match self.assemble(restart_count, last.is_some(), on_event)? {
                    Waited::Ready(agreed) => restart_count = agreed,
                    Waited::Ended(outcome) => return Ok(outcome),
                    Waited::Lost(lost) => return self.not_assembled(last, lost, restart_count),
                }
            }
            let (decision, leaving) = match self.wait_until_ready(restart_count)? {
                Waited::Ready(ready) => {
                    let result = self.run_ranks(ready, on_event)?;
                    if result.lost.is_some() {
                        self.node_group = None;
                    }
                    self.decide(result, restart_count)
                }
                Waited::Ended(outcome) => return Ok(outcome),
                Waited::Lost(lost) => {
                    self.node_group = None;
                    let outcome = Outcome::NodeLost(NodeFailure::new(lost, &self.nodes, restart_count));
                    (Decision { outcome, may_restart: true, resizes: false }, vec![])
                }
            };
            let Decision { outcome, may_restart, resizes } = decision;
            if may_restart && leaving.contains(&self.config.node_rank) {
                self.leave_quietly();
                return Ok(Outcome::without_ranks("a signal".into(), InterruptKind::Preempt));
            }
            let stays = self.stays(&outcome, may_restart, &leaving, on_event);
            if resizes || stays {
                self.leave_quietly();
            }
            let goes_on = match &outcome {
                Outcome::NodeLost(NodeFailure { node, host, reason, .. })
                    if may_restart && self.config.is_elastic() =>
                {
                    let is_named = stays && node.is_some_and(|node| leaving.contains(&node));
                    if !is_named {
                        on_event(Event::NodeLeft { node: *node, host: host.clone(), reason: reason.clone() });
                    }
                    true
                }
                _ if resizes || stays => true,
                _ if may_restart && self.failures < self.max_restarts => {
                    self.failures += 1;
                    let (of, failure) = (self.max_restarts, Box::new(outcome.clone()));
                    on_event(Event::Restarting { number: self.failures, of, failure });
                    true
                }
                _ => false,
            };
            if !goes_on {
                if let (Some(rendezvous), Outcome::Done) = (&self.rendezvous, &outcome) {
                    rendezvous.set_done();
                }
                self.leave_quietly();
                return Ok(outcome);
            }
            restart_count += 1;
            last = Some(outcome);
        }
    }

    /// How the run ends if there are not the nodes for the next start; `last`: how the start before ended.
    fn not_assembled(&self, last: Option<Outcome>, lost: LostNode, restarts: u32) -> Result<Outcome> {
        let start_again = self.config.is_elastic();
        match last {
            Some(Outcome::NodeLost(before)) => {
                let reason = format!("{}; then no launcher replaced it: {}", before.reason, lost.reason);
                Ok(Outcome::NodeLost(NodeFailure { reason, start_again, ..before }))
            }
            Some(_) if start_again => {
                let lost = NodeFailure::new(lost, &self.nodes, restarts);
                Ok(Outcome::NodeLost(NodeFailure { start_again, ..lost }))
            }
            _ => Err(self.rendezvous_failed(lost.reason)),
        }
    }

    pub(super) fn refused(&self, reason: String) -> Error {
        Error::NodeRefused { node: self.config.node_rank, endpoint: self.endpoint.to_string(), reason }
    }

    pub(super) fn rendezvous_failed(&self, reason: impl Into<String>) -> Error {
        let endpoint = self.endpoint.to_string();
        Error::NodeRendezvous { node: self.config.node_rank, endpoint, reason: reason.into() }
    }

    /// Waits until all nodes are ready to start their ranks.
    fn wait_until_ready(&mut self, restart_count: u32) -> Result<Waited<ReadyStart>> {
        let LaunchConfig { node_rank, init_timeout, restart_delay, .. } = self.launch;
        let begin = Instant::now() + if restart_count > 0 { restart_delay } else { Duration::ZERO };
        let deadline = begin + init_timeout;
        let mut socket: Option<(TcpListener, u16)> = None;
        let mut published = false;
        loop {
            if !published && Instant::now() >= begin {
                socket = match node_rank {
                    0 => Some(listener::bind_free_port(&self.endpoint)?),
                    _ => None,
                };
                let port = socket.as_ref().map_or(0, |(_, port)| *port);
                self.publish(NodeStatus {
                    state: NodeState::Ready,
                    cause: StopCause::None,
                    signalled: false,
                    restart_count,
                    port,
                });
                published = true;
            }
            let until = if published { deadline } else { begin };
            match receive_between_restarts(&self.messages, until) {
                Some(Message::Signal(signal)) => {
                    let kind = InterruptKind::of(signal);
                    self.leave(StopCause::Requested(kind, signal));
                    return Ok(Waited::Ended(Outcome::without_ranks(signal_name(signal), kind)));
                }
                Some(Message::Node(NodeEvent::Lost(lost))) => return Ok(Waited::Lost(lost)),
                Some(Message::Node(NodeEvent::Statuses(at, statuses))) => {
                    if let Some(gone) = self.leaving_node(&statuses) {
                        return Ok(gone);
                    }
                    if statuses.iter().all(|status| status.state == NodeState::Ready) {
                        let port = statuses.first().map_or(0, |status| status.port);
                        let endpoint = Endpoint { host: self.endpoint.host.clone(), port };
                        let start = StartInfo { restart_count, max_restarts: self.max_restarts, endpoint };
                        let listener = socket.take().map(|(listener, _)| listener);
                        return Ok(Waited::Ready(ReadyStart { start, listener, epoch: at }));
                    }
                }
                Some(_) => {}
                None if published => {
                    let reason = format!("not all nodes were ready within {} s", init_timeout.as_secs_f64());
                    return Ok(Waited::Lost(LostNode::unknown(reason)));
                }
                None => {}
            }
        }
    }

    /// What to do if another launcher leaves instead of starting its ranks.
    fn leaving_node(&mut self, statuses: &[NodeStatus]) -> Option<Waited<ReadyStart>> {
        let (node, status) =
            statuses.iter().enumerate().find(|(_, status)| status.state == NodeState::Leaving)?;
        let number = self.nodes.get(node).map_or(node, |(number, _)| *number);
        match status.cause {
            // The others stay, as they do when its ranks run.
            StopCause::Requested(InterruptKind::Preempt, signal)
                if self.config.is_elastic() && number != 0 =>
            {
                self.leave_quietly();
                self.expected.retain(|other| *other != number);
                let reason = format!("its launcher received {}", signal_name(signal));
                Some(Waited::Lost(LostNode { node: Some(node), reason, after: None }))
            }
            StopCause::Requested(kind, signal) => {
                self.leave(status.cause);
                let source = format!("{} on node {number}", signal_name(signal));
                Some(Waited::Ended(Outcome::without_ranks(source, kind)))
            }
            _ => {
                let reason = "its launcher has ended".into();
                Some(Waited::Lost(LostNode { node: Some(node), reason, after: None }))
            }
        }
    }

    fn run_ranks(&self, ready: ReadyStart, on_event: &mut dyn FnMut(Event)) -> Result<LocalRanksResult> {
        let ReadyStart { start, listener, epoch } = ready;
        let zero = listener.map(|listener| RankZero { listener, terminal: Terminal::open() });
        let started = start_ranks(&self.launch, &start, zero, &self.sender, on_event);
        let (ranks, terminal) = started.inspect_err(|error| {
            if let Some(node_group) = &self.node_group {
                node_group.abort(&error.to_string());
            }
        })?;
        let numbers: Vec<usize> = self.nodes.iter().map(|(number, _)| *number).collect();
        let group = LocalRanks {
            launch: &self.launch,
            restart_count: start.restart_count,
            epoch,
            host: &self.host,
            numbers: &numbers,
            waiting_nodes: &|| self.waiting_nodes(epoch),
            messages: &self.messages,
            node_group: self.node_group.as_ref(),
            on_event,
            ranks,
            terminal,
        };
        Ok(group.run())
    }

    /// On node 0: the nodes that came since this start, if it has lasted long enough and they can be used.
    fn waiting_nodes(&self, epoch: Instant) -> Option<String> {
        let waiting = self.rendezvous.as_ref()?.waiting();
        if waiting.is_empty() || epoch.elapsed() < self.config.elastic.resize_interval {
            return None;
        }
        let (most, _) = self.node_count_args.most(self.nodes.len() + waiting.len()).ok()?;
        let names: Vec<String> =
            waiting.iter().map(|other| format!("node {} ({})", other.node, other.host)).collect();
        (most > self.nodes.len()).then(|| names.join(", "))
    }

    fn publish(&self, status: NodeStatus) {
        if let Some(node_group) = &self.node_group {
            node_group.publish(status, None);
        }
    }

    pub(super) fn leave_quietly(&mut self) {
        self.leave(StopCause::None);
    }

    /// Leaves together with the others; another signal leaves at once.
    fn leave(&mut self, cause: StopCause) {
        self.publish(NodeStatus { state: NodeState::Leaving, cause, ..NodeStatus::default() });
        let deadline = Instant::now() + LEAVE;
        while self.node_group.is_some() {
            match receive_between_restarts(&self.messages, deadline) {
                Some(Message::Node(NodeEvent::Left | NodeEvent::Lost(_)) | Message::Signal(_)) | None => {
                    self.node_group = None;
                }
                Some(_) => {}
            }
        }
    }
}
