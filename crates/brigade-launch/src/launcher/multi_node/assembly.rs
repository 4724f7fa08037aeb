//! Which nodes the next start has, and the group of their launchers.

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use brigade_comm::PROTOCOL_VERSION;

use super::node::{MARGIN, Node, Waited};
use crate::{
    endpoint::Endpoint,
    error::{Error, Result},
    interrupt::InterruptKind,
    launcher::{
        config::{Elastic, LaunchConfig},
        listener,
        message::{Message, receive_between_restarts},
        node_group::{NodeDescription, NodeEvent, NodeGroup, NodeGroupConfig, check_alike},
        outcome::{Outcome, event::Event, rank_exit::signal_name, report::LostNode},
        rendezvous::{NodeJoinRequest, RendezvousEnd, Start, join},
    },
};

/// How often node 0 looks who has come.
const LOOK: Duration = Duration::from_millis(50);

/// After how long a launcher says that it waits for others.
const NOTICE: Duration = Duration::from_secs(60);

/// How long a launcher that connects to node 0 waits for its own thread between two looks at the clock.
const HOUR: Duration = Duration::from_secs(3600);

impl Node<'_> {
    /// Finds the nodes of the next start, and joins their launchers. Returns the number of starts so far, which a launcher that was
    /// started again does not know by itself.
    pub(super) fn assemble(
        &mut self,
        restart_count: u32,
        is_rejoin: bool,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<Waited<u32>> {
        if !self.config.is_elastic() {
            let endpoint = self.endpoint.to_string();
            let listener = self.listener.as_ref().map(TcpListener::try_clone).transpose();
            let listener = listener.map_err(share)?;
            let wait = self.config.init_timeout;
            return self.join(endpoint, listener, restart_count, wait, is_rejoin, on_event);
        }
        let deadline = Instant::now() + self.config.init_timeout + self.config.elastic.last_call + MARGIN;
        loop {
            let found = match self.rendezvous.is_some() {
                true => self.gather(restart_count)?,
                false => self.wait_for_start(restart_count)?,
            };
            let (start, listener) = match found {
                Waited::Ready(found) => found,
                Waited::Ended(outcome) => return Ok(Waited::Ended(outcome)),
                Waited::Lost(lost) => return Ok(Waited::Lost(lost)),
            };
            let before = std::mem::replace(&mut self.nodes, start.nodes.clone());
            let own = self.nodes.iter().position(|(node, _)| *node == self.config.node_rank).unwrap_or(0);
            self.launch = LaunchConfig { nnodes: self.nodes.len(), node_rank: own, ..self.config.clone() };
            self.launch.args.extend(start.args.iter().map(Into::into));
            let endpoint = Endpoint { host: self.endpoint.host.clone(), port: start.port }.to_string();
            let wait = self.config.host_timeout;
            match self.join(endpoint, listener, start.restart_count, wait, false, on_event)? {
                Waited::Ready(agreed) => {
                    self.failures = start.failures;
                    self.max_restarts = start.max_restarts;
                    self.expected = self.nodes.iter().map(|(node, _)| *node).collect();
                    let (nodes, nproc) = (start.nodes, self.config.nproc);
                    let unused = self.unused.take();
                    on_event(Event::Assembled { nodes, before, nproc, args: start.args, unused });
                    return Ok(Waited::Ready(agreed));
                }
                // A launcher may have died since it was chosen: without it, another choice is made.
                Waited::Lost(_) if Instant::now() < deadline => self.nodes = before,
                ended => return Ok(ended),
            }
        }
    }

    fn description(&self, restart_count: u32) -> NodeDescription {
        let LaunchConfig { nproc, max_restarts, .. } = *self.config;
        NodeDescription {
            host: self.host.clone(),
            nproc,
            max_restarts,
            restart_count,
            decides: String::new(),
        }
    }

    pub(super) fn join_request(&self, restart_count: u32) -> NodeJoinRequest {
        let LaunchConfig { node_rank, nproc, nnodes, ref elastic, .. } = *self.config;
        NodeJoinRequest {
            version: PROTOCOL_VERSION,
            node: node_rank,
            host: self.host.clone(),
            nproc,
            nodes: (elastic.min_nodes, nnodes),
            configuration: elastic.configuration.clone(),
            restart_count,
            failures: self.failures,
        }
    }

    /// On node 0: waits until all are there who may come, or for [`Elastic::last_call`] once enough are.
    fn gather(&mut self, restart_count: u32) -> Result<Waited<(Start, Option<TcpListener>)>> {
        let LaunchConfig { nnodes, init_timeout, elastic: Elastic { min_nodes, last_call, .. }, .. } =
            self.config;
        let begin = Instant::now();
        let mut enough_since = None;
        if let Some(rendezvous) = &self.rendezvous {
            rendezvous.set_members(&[]);
        }
        loop {
            let Some(rendezvous) = &self.rendezvous else { return Ok(Waited::Lost(LostNode::unknown(""))) };
            let waiting = rendezvous.waiting();
            let there = waiting.len() + 1;
            enough_since = if there < *min_nodes { None } else { enough_since.or(Some(Instant::now())) };
            let is_there = |node: &usize| *node == 0 || waiting.iter().any(|other| other.node == *node);
            let all = there == *nnodes || !self.expected.is_empty() && self.expected.iter().all(is_there);
            if enough_since.is_some_and(|since: Instant| all || since.elapsed() >= *last_call) {
                return self.choose(restart_count).map(Waited::Ready);
            }
            if enough_since.is_none() && begin.elapsed() >= *init_timeout {
                let mut numbers = vec![0];
                numbers.extend(waiting.iter().map(|other| other.node));
                let waited = init_timeout.as_secs_f64();
                let reason = format!(
                    "after {waited} s only nodes {numbers:?} are there, and --nnodes {min_nodes}:{nnodes} needs {min_nodes}"
                );
                rendezvous.refuse_all(&reason);
                return Ok(Waited::Lost(LostNode::unknown(reason)));
            }
            if let Some(Message::Signal(signal)) =
                receive_between_restarts(&self.messages, Instant::now() + LOOK)
            {
                return Ok(Waited::Ended(without_ranks(signal)));
            }
        }
    }

    /// On node 0: chooses among those who are there, nodes of the start before first.
    fn choose(&mut self, restart_count: u32) -> Result<(Start, Option<TcpListener>)> {
        let Some(rendezvous) = &self.rendezvous else { return Err(self.rendezvous_failed("it is closed")) };
        let mut waiting = rendezvous.waiting();
        let there = waiting.len() + 1;
        let (nodes_there, are) = match there {
            1 => ("1 node".to_owned(), "is"),
            many => (format!("{many} nodes"), "are"),
        };
        let (count, args) = self.node_count_args.most(there).map_err(|reason| {
            rendezvous.refuse_all(&reason);
            let allowed =
                format!("no number of nodes that --nnodes allows and that have joined can be used: {reason}");
            Error::Flag { option: "--nnodes", value: nodes_there.clone(), allowed }
        })?;
        self.unused = self
            .node_count_args
            .refusal(there)
            .map(|reason| format!("{nodes_there} {are} there, of which {count} are used: {reason}"));
        waiting.sort_by_key(|other| (!self.expected.contains(&other.node), other.node));
        waiting.truncate(count - 1);
        waiting.sort();
        let mut nodes = vec![(0, self.host.clone())];
        nodes.extend(waiting.into_iter().map(|other| (other.node, other.host)));
        let (listener, port) = listener::bind_free_port(&self.endpoint)?;
        let (starts, failures) = rendezvous.counts();
        let start = Start {
            nodes,
            port,
            restart_count: restart_count.max(starts),
            failures: self.failures.max(failures),
            max_restarts: self.config.max_restarts,
            args,
        };
        rendezvous.begin(&start);
        Ok((start, Some(listener)))
    }

    /// On any other node: asks node 0, which may let this node wait.
    fn wait_for_start(&self, restart_count: u32) -> Result<Waited<(Start, Option<TcpListener>)>> {
        let request = self.join_request(restart_count);
        let (endpoint, token) = (self.endpoint.to_string(), self.config.token.clone());
        let LaunchConfig { init_timeout, host_timeout, .. } = *self.config;
        let sender = self.sender.clone();
        let joining = move || {
            let result = join(&endpoint, &token, &request, init_timeout, host_timeout);
            // The launcher may have stopped listening.
            drop(sender.send(Message::Node(NodeEvent::Rendezvous(result))));
        };
        let started = thread::Builder::new().name("rendezvous".into()).spawn(joining);
        started.map_err(|source| Error::System { operation: "start a thread", source })?;
        loop {
            match receive_between_restarts(&self.messages, Instant::now() + HOUR) {
                Some(Message::Signal(signal)) => return Ok(Waited::Ended(without_ranks(signal))),
                Some(Message::Node(NodeEvent::Rendezvous(result))) => {
                    return Ok(match result {
                        // Later on, the run may have changed, not what this node was given.
                        Err(RendezvousEnd::Refused(reason)) if restart_count == 0 => {
                            return Err(self.refused(reason));
                        }
                        Ok(start) => Waited::Ready((start, None)),
                        Err(RendezvousEnd::Over { is_done: true }) => Waited::Ended(Outcome::Done),
                        Err(RendezvousEnd::Over { is_done: false }) => {
                            Waited::Lost(LostNode::unknown("the run has ended, but is not finished"))
                        }
                        Err(RendezvousEnd::Unreachable(reason) | RendezvousEnd::Refused(reason)) => {
                            Waited::Lost(LostNode::unknown(reason))
                        }
                    });
                }
                _ => {}
            }
        }
    }

    /// Joins the launchers of the start's nodes at this endpoint.
    fn join(
        &mut self,
        endpoint: String,
        listener: Option<TcpListener>,
        restart_count: u32,
        timeout: Duration,
        is_rejoin: bool,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<Waited<u32>> {
        let LaunchConfig { nnodes, node_rank, host_timeout, ref token, .. } = self.launch;
        let config = NodeGroupConfig {
            node: node_rank,
            nnodes,
            endpoint,
            listener,
            token: token.clone(),
            timeout,
            host_timeout,
            is_rejoin,
            description: self.description(restart_count),
        };
        let sender = self.sender.clone();
        // The launcher may have stopped listening.
        let send = move |event| drop(sender.send(Message::Node(event)));
        let node_group = NodeGroup::start(config, send)?;
        let deadline = Instant::now() + timeout + MARGIN;
        let mut notice = (timeout > NOTICE).then(|| Instant::now() + NOTICE);
        loop {
            let lost = |reason: String| Ok(Waited::Lost(LostNode::unknown(reason)));
            match receive_between_restarts(&self.messages, notice.unwrap_or(deadline)) {
                Some(Message::Signal(signal)) => return Ok(Waited::Ended(without_ranks(signal))),
                Some(Message::Node(NodeEvent::Joined { descriptions, ahead })) => {
                    self.node_group = Some(node_group);
                    if node_rank == 0 && !ahead.is_empty() {
                        let host = |node: usize| descriptions.get(node).map(|there| there.host.clone());
                        let named = |(node, seconds)| (host(node).unwrap_or_default(), seconds);
                        on_event(Event::ClocksDiffer { ahead: ahead.into_iter().map(named).collect() });
                    }
                    // All launchers see the same, so they leave together.
                    check_alike(&descriptions, node_rank).inspect_err(|_| self.leave_quietly())?;
                    let agreed =
                        descriptions.iter().map(|description| description.restart_count).max().unwrap_or(0);
                    if !self.config.is_elastic() {
                        self.failures = agreed;
                        self.max_restarts = descriptions.first().map_or(0, |first| first.max_restarts);
                        self.nodes = descriptions
                            .into_iter()
                            .map(|description| description.host)
                            .enumerate()
                            .collect();
                    }
                    return Ok(Waited::Ready(agreed));
                }
                Some(Message::Node(NodeEvent::JoinFailed(error))) => return lost(error.to_string()),
                None if notice.take().is_some() => on_event(Event::Waiting { most: timeout }),
                None => return lost(format!("no answer within {} s", timeout.as_secs_f64())),
                Some(_) => {}
            }
        }
    }
}

fn without_ranks(signal: i32) -> Outcome {
    Outcome::without_ranks(signal_name(signal), InterruptKind::of(signal))
}

fn share(source: std::io::Error) -> Error {
    Error::System { operation: "share the socket of the rendezvous", source }
}
