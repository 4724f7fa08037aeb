//! The starts and restarts of a world on several nodes, whose launchers agree on each of them.

use std::{
    net::TcpListener,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use super::{
    config::LaunchConfig,
    listener,
    message::{Message, receive_between_restarts},
    node_group::{NodeDescription, NodeEvent, NodeGroup, NodeGroupConfig, NodeState, NodeStatus, StopCause},
    outcome::{
        Outcome,
        decision::{Decision, decide, decide_without_others},
        event::Event,
        failure::NodeFailure,
        rank_exit::signal_name,
        report::LostNode,
    },
    process::{RankZero, StartInfo, Terminal},
    worker_group::{WorkerGroup, WorkerGroupResult, start_ranks},
};
use crate::{
    endpoint::Endpoint,
    error::{Error, Result},
    interrupt::InterruptKind,
};

/// How much longer than the launchers' own deadline this one waits to hear from them.
const MARGIN: Duration = Duration::from_secs(10);

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
    let node = Node {
        launch,
        sender,
        messages,
        endpoint,
        listener,
        host,
        hosts: vec![],
        max_restarts: 0,
        node_group: None,
    };
    node.run(on_event)
}

/// This node among the others.
struct Node<'a> {
    launch: &'a LaunchConfig,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    /// Where the launchers meet.
    endpoint: Endpoint,
    /// On node 0, bound to the endpoint throughout.
    listener: Option<TcpListener>,
    host: String,
    /// The names of all hosts.
    hosts: Vec<String>,
    max_restarts: u32,
    /// The group of all launchers, while this one is a member.
    node_group: Option<NodeGroup>,
}

/// The result of waiting for the other nodes.
enum Waited<T> {
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
        let mut failed: Option<Outcome> = None;
        loop {
            if self.node_group.is_none() {
                match self.join(restart_count, failed.is_some())? {
                    Waited::Ready(agreed) => restart_count = agreed,
                    Waited::Ended(outcome) => return Ok(outcome),
                    Waited::Lost(lost) => return self.join_failed(failed, lost),
                }
            }
            let decision = match self.wait_until_ready(restart_count)? {
                Waited::Ready(ready) => {
                    let WorkerGroupResult { mut reports, lost } = self.run_ranks(ready, on_event)?;
                    if lost.is_some() {
                        self.node_group = None;
                    }
                    match (lost, reports.pop()) {
                        (Some(lost), Some(own)) => {
                            decide_without_others(own, lost, &self.hosts, restart_count)
                        }
                        (_, last) => {
                            reports.extend(last);
                            decide(reports, restart_count)
                        }
                    }
                }
                Waited::Ended(outcome) => return Ok(outcome),
                Waited::Lost(lost) => {
                    self.node_group = None;
                    let host = lost.node.and_then(|node| self.hosts.get(node).cloned());
                    let LostNode { node, reason, after } = lost;
                    let lost =
                        NodeFailure { node, host, reason, after, restarts: restart_count, others: vec![] };
                    Decision { outcome: Outcome::NodeLost(lost), may_restart: true }
                }
            };
            let Decision { outcome, may_restart } = decision;
            if !may_restart || restart_count >= self.max_restarts {
                self.leave(StopCause::None);
                return Ok(outcome);
            }
            restart_count += 1;
            let (of, failure) = (self.max_restarts, Box::new(outcome.clone()));
            on_event(Event::Restarting { number: restart_count, of, failure });
            failed = Some(outcome);
        }
    }

    /// Joins the other launchers. Returns the number of restarts, which a launcher that was
    /// started again does not know by itself.
    fn join(&mut self, restart_count: u32, is_rejoin: bool) -> Result<Waited<u32>> {
        let system = |source| Error::System { operation: "share the socket of the rendezvous", source };
        let LaunchConfig { nnodes, node_rank, nproc, max_restarts, init_timeout, host_timeout, .. } =
            *self.launch;
        let config = NodeGroupConfig {
            node: node_rank,
            nnodes,
            endpoint: self.endpoint.to_string(),
            listener: self.listener.as_ref().map(TcpListener::try_clone).transpose().map_err(system)?,
            token: self.launch.token.clone(),
            timeout: init_timeout,
            host_timeout,
            is_rejoin,
            description: NodeDescription { host: self.host.clone(), nproc, max_restarts, restart_count },
        };
        let sender = self.sender.clone();
        // The launcher may have stopped listening.
        let send = move |event| drop(sender.send(Message::Node(event)));
        let node_group = NodeGroup::start(config, send)?;
        let deadline = Instant::now() + init_timeout + MARGIN;
        loop {
            let lost = |reason: String| Ok(Waited::Lost(LostNode::unknown(reason)));
            match receive_between_restarts(&self.messages, deadline) {
                Some(Message::Signal(signal)) => {
                    return Ok(Waited::Ended(Outcome::without_ranks(
                        signal_name(signal),
                        InterruptKind::of(signal),
                    )));
                }
                Some(Message::Node(NodeEvent::Joined(descriptions))) => {
                    self.node_group = Some(node_group);
                    // All launchers see the same, so they leave together.
                    check_alike(&descriptions, node_rank).inspect_err(|_| self.leave(StopCause::None))?;
                    self.max_restarts =
                        descriptions.first().map_or(0, |description| description.max_restarts);
                    self.hosts = descriptions.iter().map(|description| description.host.clone()).collect();
                    return Ok(Waited::Ready(
                        descriptions.iter().map(|description| description.restart_count).max().unwrap_or(0),
                    ));
                }
                Some(Message::Node(NodeEvent::JoinFailed(error))) => return lost(error.to_string()),
                None => return lost(format!("no answer within {} s", init_timeout.as_secs_f64())),
                Some(_) => {}
            }
        }
    }

    fn join_failed(&self, failed: Option<Outcome>, lost: LostNode) -> Result<Outcome> {
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

    /// Waits until all nodes are ready to start their ranks.
    fn wait_until_ready(&mut self, restart_count: u32) -> Result<Waited<ReadyStart>> {
        let LaunchConfig { node_rank, init_timeout, restart_delay, .. } = *self.launch;
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
        match status.cause {
            StopCause::Requested(kind, signal) => {
                self.leave(status.cause);
                let source = format!("{} on node {node}", signal_name(signal));
                Some(Waited::Ended(Outcome::without_ranks(source, kind)))
            }
            _ => {
                let reason = "its launcher has ended".into();
                Some(Waited::Lost(LostNode { node: Some(node), reason, after: None }))
            }
        }
    }

    fn run_ranks(&self, ready: ReadyStart, on_event: &mut dyn FnMut(Event)) -> Result<WorkerGroupResult> {
        let ReadyStart { start, listener, epoch } = ready;
        let zero = listener.map(|listener| RankZero { listener, terminal: Terminal::open() });
        let started = start_ranks(self.launch, &start, zero, &self.sender, on_event);
        let (ranks, terminal) = started.inspect_err(|error| {
            if let Some(node_group) = &self.node_group {
                node_group.abort(&error.to_string());
            }
        })?;
        let group = WorkerGroup {
            launch: self.launch,
            restart_count: start.restart_count,
            epoch,
            host: &self.host,
            messages: &self.messages,
            node_group: self.node_group.as_ref(),
            on_event,
            ranks,
            terminal,
        };
        Ok(group.run())
    }

    fn publish(&self, status: NodeStatus) {
        if let Some(node_group) = &self.node_group {
            node_group.publish(status, None);
        }
    }

    /// Leaves together with the others; another signal leaves at once.
    fn leave(&mut self, cause: StopCause) {
        self.publish(NodeStatus { state: NodeState::Leaving, cause, restart_count: 0, port: 0 });
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
