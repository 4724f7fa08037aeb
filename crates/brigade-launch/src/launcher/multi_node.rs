//! The starts of a world on several nodes, whose launchers agree on each of them.

use std::{
    net::TcpListener,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use super::{
    LaunchConfig, ended_by,
    event::{Event, Message},
    failure::NodeFailure,
    host_name, next_between_rounds,
    outcome::{Outcome, signal_name},
    process::{RankZero, Start},
    report::{Decision, decide},
    round::{Finished, Round},
    start_ranks,
    terminal::Terminal,
};
use crate::{
    Endpoint, Error, Result,
    interrupt::InterruptKind,
    listener,
    nodes::{
        LostNode, NodeDescription, NodeEvent, NodeGroup, NodeGroupConfig, NodeState, NodeStatus, StopCause,
    },
};

/// How much longer than the launchers' own deadline this one waits for news of them.
const MARGIN: Duration = Duration::from_secs(10);

/// How long the launchers may take to leave together.
const LEAVE: Duration = Duration::from_secs(10);

pub fn run(
    launch: &LaunchConfig,
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
    let (host, hosts) = (host_name(), vec![]);
    let node =
        Node { launch, sender, messages, endpoint, listener, host, hosts, max_restarts: 0, nodes: None };
    node.run(on_event)
}

/// This node among the others.
struct Node<'a> {
    launch: &'a LaunchConfig,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    /// Where the launchers meet.
    endpoint: Endpoint,
    /// On node 0, bound to the endpoint from the first to the last moment.
    listener: Option<TcpListener>,
    host: String,
    /// The names of all hosts.
    hosts: Vec<String>,
    max_restarts: u32,
    /// The others, while this node is in touch with them.
    nodes: Option<NodeGroup>,
}

/// What came out of waiting for the others.
enum Gathered<T> {
    Ready(T),
    /// A launcher got a signal.
    Ended(Outcome),
    Lost(LostNode),
}

/// What the start of a round needs.
struct Go {
    start: Start,
    listener: Option<TcpListener>,
    epoch: Instant,
}

impl Node<'_> {
    fn run(mut self, on_event: &mut dyn FnMut(Event)) -> Result<Outcome> {
        let mut number = 0;
        let mut failed: Option<Outcome> = None;
        loop {
            if self.nodes.is_none() {
                match self.meet(number, failed.is_some())? {
                    Gathered::Ready(agreed) => number = agreed,
                    Gathered::Ended(outcome) => return Ok(outcome),
                    Gathered::Lost(lost) => return self.never_met(failed, lost),
                }
            }
            let decision = match self.gather(number)? {
                Gathered::Ready(go) => {
                    let finished = self.round(go, on_event)?;
                    if finished.lost.is_some() {
                        self.nodes = None;
                    }
                    decide(finished, &self.hosts, number)
                }
                Gathered::Ended(outcome) => return Ok(outcome),
                Gathered::Lost(lost) => {
                    self.nodes = None;
                    let host = lost.node.and_then(|node| self.hosts.get(node).cloned());
                    let LostNode { node, reason, after } = lost;
                    let lost = NodeFailure { node, host, reason, after, restarts: number, others: vec![] };
                    Decision { outcome: Outcome::NodeLost(lost), may_restart: true }
                }
            };
            let Decision { outcome, may_restart } = decision;
            if !may_restart || number >= self.max_restarts {
                self.leave(StopCause::None);
                return Ok(outcome);
            }
            number += 1;
            let (of, failure) = (self.max_restarts, Box::new(outcome.clone()));
            on_event(Event::Restarting { number, of, failure });
            failed = Some(outcome);
        }
    }

    /// Gets in touch with the others. Gives the number of the round that comes next, which a launcher that was
    /// started again does not know by itself.
    fn meet(&mut self, number: u32, again: bool) -> Result<Gathered<u32>> {
        let system = |source| Error::System { operation: "share the socket of the rendezvous", source };
        let LaunchConfig { nnodes, node_rank, nproc, max_restarts, init_timeout, host_timeout, .. } =
            *self.launch;
        let meeting = NodeGroupConfig {
            node: node_rank,
            nnodes,
            endpoint: self.endpoint.to_string(),
            listener: self.listener.as_ref().map(TcpListener::try_clone).transpose().map_err(system)?,
            token: self.launch.token.as_str().to_owned(),
            timeout: init_timeout,
            host_timeout,
            again,
            description: NodeDescription { host: self.host.clone(), nproc, max_restarts, round: number },
        };
        let nodes = NodeGroup::start(meeting, self.sender.clone())?;
        let deadline = Instant::now() + init_timeout + MARGIN;
        loop {
            let lost = |reason| Ok(Gathered::Lost(LostNode { node: None, reason, after: None }));
            match next_between_rounds(&self.messages, deadline) {
                Some(Message::Signal(signal)) => {
                    return Ok(Gathered::Ended(ended_by(signal_name(signal), InterruptKind::of(signal))));
                }
                Some(Message::Node(NodeEvent::Joined(descriptions))) => {
                    self.nodes = Some(nodes);
                    // All see the same, so that they leave together.
                    check_alike(&descriptions, node_rank).inspect_err(|_| self.leave(StopCause::None))?;
                    self.max_restarts =
                        descriptions.first().map_or(0, |description| description.max_restarts);
                    self.hosts = descriptions.iter().map(|description| description.host.clone()).collect();
                    return Ok(Gathered::Ready(
                        descriptions.iter().map(|description| description.round).max().unwrap_or(0),
                    ));
                }
                Some(Message::Node(NodeEvent::JoinFailed(error))) => return lost(error.to_string()),
                None => return lost(format!("no answer within {} s", init_timeout.as_secs_f64())),
                Some(_) => {}
            }
        }
    }

    fn never_met(&self, failed: Option<Outcome>, lost: LostNode) -> Result<Outcome> {
        match failed {
            Some(Outcome::NodeLost(before)) => {
                let reason = format!("{}; then no launcher took its place: {}", before.reason, lost.reason);
                Ok(Outcome::NodeLost(NodeFailure { reason, ..before }))
            }
            _ => Err(Error::NodeRendezvous {
                node: self.launch.node_rank,
                endpoint: self.endpoint.to_string(),
                reason: lost.reason,
            }),
        }
    }

    /// Waits until all nodes are ready for the round.
    fn gather(&mut self, number: u32) -> Result<Gathered<Go>> {
        let LaunchConfig { node_rank, init_timeout, restart_delay, .. } = *self.launch;
        let begin = Instant::now() + if number > 0 { restart_delay } else { Duration::ZERO };
        let deadline = begin + init_timeout;
        let mut socket: Option<(TcpListener, u16)> = None;
        let mut published = false;
        loop {
            if !published && Instant::now() >= begin {
                socket = match node_rank {
                    0 => Some(listener::bind_anywhere(&self.endpoint)?),
                    _ => None,
                };
                let port = socket.as_ref().map_or(0, |(_, port)| *port);
                self.publish(NodeStatus {
                    state: NodeState::Ready,
                    cause: StopCause::None,
                    round: number,
                    port,
                });
                published = true;
            }
            let until = if published { deadline } else { begin };
            match next_between_rounds(&self.messages, until) {
                Some(Message::Signal(signal)) => {
                    let kind = InterruptKind::of(signal);
                    self.leave(StopCause::Requested(kind, signal));
                    return Ok(Gathered::Ended(ended_by(signal_name(signal), kind)));
                }
                Some(Message::Node(NodeEvent::Lost(lost))) => return Ok(Gathered::Lost(lost)),
                Some(Message::Node(NodeEvent::Statuses(at, table))) => {
                    if let Some(gone) = self.somebody_left(&table) {
                        return Ok(gone);
                    }
                    if table.iter().all(|status| status.state == NodeState::Ready) {
                        let port = table.first().map_or(0, |status| status.port);
                        let endpoint = Endpoint { host: self.endpoint.host.clone(), port };
                        let start = Start { round: number, max_restarts: self.max_restarts, endpoint };
                        let listener = socket.take().map(|(listener, _)| listener);
                        return Ok(Gathered::Ready(Go { start, listener, epoch: at }));
                    }
                }
                Some(_) => {}
                None if published => {
                    let reason = format!("not all nodes were ready within {} s", init_timeout.as_secs_f64());
                    return Ok(Gathered::Lost(LostNode { node: None, reason, after: None }));
                }
                None => {}
            }
        }
    }

    /// Another launcher that does not go on with this round.
    fn somebody_left(&mut self, table: &[NodeStatus]) -> Option<Gathered<Go>> {
        let (node, status) =
            table.iter().enumerate().find(|(_, status)| status.state == NodeState::Leaving)?;
        match status.cause {
            StopCause::Requested(kind, signal) => {
                self.leave(status.cause);
                let by = format!("{} on node {node}", signal_name(signal));
                Some(Gathered::Ended(ended_by(by, kind)))
            }
            _ => {
                let reason = "its launcher has ended".into();
                Some(Gathered::Lost(LostNode { node: Some(node), reason, after: None }))
            }
        }
    }

    fn round(&self, go: Go, on_event: &mut dyn FnMut(Event)) -> Result<Finished> {
        let Go { start, listener, epoch } = go;
        let zero = listener.map(|listener| RankZero { listener, terminal: Terminal::open() });
        let started = start_ranks(self.launch, &start, zero, &self.sender, on_event);
        let (ranks, terminal) = started.inspect_err(|error| {
            if let Some(nodes) = &self.nodes {
                nodes.abort(&error.to_string());
            }
        })?;
        let round = Round {
            launch: self.launch,
            number: start.round,
            epoch,
            host: &self.host,
            messages: &self.messages,
            nodes: self.nodes.as_ref(),
            on_event,
            ranks,
            terminal,
        };
        Ok(round.run())
    }

    fn publish(&self, status: NodeStatus) {
        if let Some(nodes) = &self.nodes {
            nodes.publish(status, None);
        }
    }

    /// Leaves together with the others; another signal leaves at once.
    fn leave(&mut self, cause: StopCause) {
        self.publish(NodeStatus { state: NodeState::Leaving, cause, round: 0, port: 0 });
        let deadline = Instant::now() + LEAVE;
        while self.nodes.is_some() {
            match next_between_rounds(&self.messages, deadline) {
                Some(Message::Node(NodeEvent::Left | NodeEvent::Lost(_)) | Message::Signal(_)) | None => {
                    self.nodes = None;
                }
                Some(_) => {}
            }
        }
    }
}

/// All nodes start the same number of ranks.
fn check_alike(descriptions: &[NodeDescription], node: usize) -> Result<()> {
    let first = descriptions.first().map_or(0, |description| description.nproc);
    let Some(other) = descriptions.iter().position(|description| description.nproc != first) else {
        return Ok(());
    };
    let shown = if descriptions[node].nproc == first { other } else { node };
    Err(Error::LaunchConfig {
        field: "nproc",
        value: format!("{first} on node 0 and {} on node {shown}", descriptions[shown].nproc),
        allowed: "all nodes start the same number of ranks".into(),
    })
}
