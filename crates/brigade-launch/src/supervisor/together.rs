//! The starts of a world on several nodes, whose launchers agree on each of them.

use std::{
    net::TcpListener,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

use super::{
    Launch, ended_by,
    event::{Event, Message},
    failure::NodeLost,
    host_name, next_between_rounds,
    outcome::{Outcome, signal_name},
    process::{RankZero, Start},
    report::{Verdict, judge},
    round::{Finished, Round},
    start_ranks,
    terminal::Terminal,
};
use crate::{
    Endpoint, Error, Result,
    agents::{Agents, Cause, Hello, Lost, Meeting, News, State, Status},
    handover,
    interrupt::Kind,
};

/// How much longer than the launchers' own deadline this one waits for news of them.
const MARGIN: Duration = Duration::from_secs(10);

/// How long the launchers may take to leave together.
const LEAVE: Duration = Duration::from_secs(10);

pub fn run(
    launch: &Launch,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    on_event: &mut dyn FnMut(Event),
) -> Result<Outcome> {
    let Some(endpoint) = launch.endpoint.clone() else {
        let allowed = "several nodes need the address of node 0".into();
        return Err(Error::Launch { field: "endpoint", value: "not set".into(), allowed });
    };
    let listener = match launch.node_rank {
        0 => Some(handover::bind(Some(&endpoint), launch.nnodes)?.0),
        _ => None,
    };
    let (host, hosts) = (host_name(), vec![]);
    let node =
        Node { launch, sender, messages, endpoint, listener, host, hosts, max_restarts: 0, agents: None };
    node.run(on_event)
}

/// This node among the others.
struct Node<'a> {
    launch: &'a Launch,
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
    agents: Option<Agents>,
}

/// What came out of waiting for the others.
enum Gathered<T> {
    Ready(T),
    /// A launcher got a signal.
    Ended(Outcome),
    Lost(Lost),
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
            if self.agents.is_none() {
                match self.meet(number, failed.is_some())? {
                    Gathered::Ready(agreed) => number = agreed,
                    Gathered::Ended(outcome) => return Ok(outcome),
                    Gathered::Lost(lost) => return self.never_met(failed, lost),
                }
            }
            let verdict = match self.gather(number)? {
                Gathered::Ready(go) => {
                    let finished = self.round(go, on_event)?;
                    if finished.lost.is_some() {
                        self.agents = None;
                    }
                    judge(finished, &self.hosts, number)
                }
                Gathered::Ended(outcome) => return Ok(outcome),
                Gathered::Lost(lost) => {
                    self.agents = None;
                    let host = lost.node.and_then(|node| self.hosts.get(node).cloned());
                    let Lost { node, reason, after } = lost;
                    let lost = NodeLost { node, host, reason, after, restarts: number, others: vec![] };
                    Verdict { outcome: Outcome::NodeLost(lost), may_restart: true }
                }
            };
            let Verdict { outcome, may_restart } = verdict;
            if !may_restart || number >= self.max_restarts {
                self.leave(Cause::None);
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
        let Launch { nnodes, node_rank, nproc, max_restarts, init_timeout, host_timeout, .. } = *self.launch;
        let meeting = Meeting {
            node: node_rank,
            nnodes,
            endpoint: self.endpoint.to_string(),
            listener: self.listener.as_ref().map(TcpListener::try_clone).transpose().map_err(system)?,
            token: self.launch.token.as_str().to_owned(),
            timeout: init_timeout,
            host_timeout,
            again,
            hello: Hello { host: self.host.clone(), nproc, max_restarts, round: number },
        };
        let agents = Agents::start(meeting, self.sender.clone())?;
        let deadline = Instant::now() + init_timeout + MARGIN;
        loop {
            let lost = |reason| Ok(Gathered::Lost(Lost { node: None, reason, after: None }));
            match next_between_rounds(&self.messages, deadline) {
                Some(Message::Signal(signal)) => {
                    return Ok(Gathered::Ended(ended_by(signal_name(signal), Kind::of(signal))));
                }
                Some(Message::Agents(News::Met(hellos))) => {
                    self.agents = Some(agents);
                    // All see the same, so that they leave together.
                    check_alike(&hellos, node_rank).inspect_err(|_| self.leave(Cause::None))?;
                    self.max_restarts = hellos.first().map_or(0, |hello| hello.max_restarts);
                    self.hosts = hellos.iter().map(|hello| hello.host.clone()).collect();
                    return Ok(Gathered::Ready(hellos.iter().map(|hello| hello.round).max().unwrap_or(0)));
                }
                Some(Message::Agents(News::NotMet(error))) => return lost(error.to_string()),
                None => return lost(format!("no answer within {} s", init_timeout.as_secs_f64())),
                Some(_) => {}
            }
        }
    }

    fn never_met(&self, failed: Option<Outcome>, lost: Lost) -> Result<Outcome> {
        match failed {
            Some(Outcome::NodeLost(before)) => {
                let reason = format!("{}; then no launcher took its place: {}", before.reason, lost.reason);
                Ok(Outcome::NodeLost(NodeLost { reason, ..before }))
            }
            _ => Err(Error::Meeting {
                node: self.launch.node_rank,
                endpoint: self.endpoint.to_string(),
                reason: lost.reason,
            }),
        }
    }

    /// Waits until all nodes are ready for the round.
    fn gather(&mut self, number: u32) -> Result<Gathered<Go>> {
        let Launch { node_rank, init_timeout, restart_pause, .. } = *self.launch;
        let begin = Instant::now() + if number > 0 { restart_pause } else { Duration::ZERO };
        let deadline = begin + init_timeout;
        let mut socket: Option<(TcpListener, u16)> = None;
        let mut published = false;
        loop {
            if !published && Instant::now() >= begin {
                socket = match node_rank {
                    0 => Some(handover::bind_anywhere(&self.endpoint)?),
                    _ => None,
                };
                let port = socket.as_ref().map_or(0, |(_, port)| *port);
                self.publish(Status { state: State::Ready, cause: Cause::None, round: number, port });
                published = true;
            }
            let until = if published { deadline } else { begin };
            match next_between_rounds(&self.messages, until) {
                Some(Message::Signal(signal)) => {
                    let kind = Kind::of(signal);
                    self.leave(Cause::Told(kind, signal));
                    return Ok(Gathered::Ended(ended_by(signal_name(signal), kind)));
                }
                Some(Message::Agents(News::Lost(lost))) => return Ok(Gathered::Lost(lost)),
                Some(Message::Agents(News::Table(at, table))) => {
                    if let Some(gone) = self.somebody_left(&table) {
                        return Ok(gone);
                    }
                    if table.iter().all(|status| status.state == State::Ready) {
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
                    return Ok(Gathered::Lost(Lost { node: None, reason, after: None }));
                }
                None => {}
            }
        }
    }

    /// Another launcher that does not go on with this round.
    fn somebody_left(&mut self, table: &[Status]) -> Option<Gathered<Go>> {
        let (node, status) = table.iter().enumerate().find(|(_, status)| status.state == State::Leaving)?;
        match status.cause {
            Cause::Told(kind, signal) => {
                self.leave(status.cause);
                let by = format!("{} on node {node}", signal_name(signal));
                Some(Gathered::Ended(ended_by(by, kind)))
            }
            _ => {
                let reason = "its launcher has ended".into();
                Some(Gathered::Lost(Lost { node: Some(node), reason, after: None }))
            }
        }
    }

    fn round(&self, go: Go, on_event: &mut dyn FnMut(Event)) -> Result<Finished> {
        let Go { start, listener, epoch } = go;
        let zero = listener.map(|listener| RankZero { listener, terminal: Terminal::open() });
        let started = start_ranks(self.launch, &start, zero, &self.sender, on_event);
        let (ranks, terminal) = started.inspect_err(|error| {
            if let Some(agents) = &self.agents {
                agents.abort(&error.to_string());
            }
        })?;
        let round = Round {
            launch: self.launch,
            number: start.round,
            epoch,
            host: &self.host,
            messages: &self.messages,
            agents: self.agents.as_ref(),
            on_event,
            ranks,
            terminal,
        };
        Ok(round.run())
    }

    fn publish(&self, status: Status) {
        if let Some(agents) = &self.agents {
            agents.publish(status, None);
        }
    }

    /// Leaves together with the others; another signal leaves at once.
    fn leave(&mut self, cause: Cause) {
        self.publish(Status { state: State::Leaving, cause, round: 0, port: 0 });
        let deadline = Instant::now() + LEAVE;
        while self.agents.is_some() {
            match next_between_rounds(&self.messages, deadline) {
                Some(Message::Agents(News::Left | News::Lost(_)) | Message::Signal(_)) | None => {
                    self.agents = None;
                }
                Some(_) => {}
            }
        }
    }
}

/// All nodes start the same number of ranks.
fn check_alike(hellos: &[Hello], node: usize) -> Result<()> {
    let first = hellos.first().map_or(0, |hello| hello.nproc);
    let Some(other) = hellos.iter().position(|hello| hello.nproc != first) else { return Ok(()) };
    let shown = if hellos[node].nproc == first { other } else { node };
    Err(Error::Launch {
        field: "nproc",
        value: format!("{first} on node 0 and {} on node {shown}", hellos[shown].nproc),
        allowed: "all nodes start the same number of ranks".into(),
    })
}
