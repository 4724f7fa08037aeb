//! One start of this node's ranks, until all of them have ended.

mod told;

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use signal_hook::consts::{SIGTERM, SIGTSTP, SIGWINCH};

use super::{
    OUTPUT_DRAIN, ROOT_CAUSE_WINDOW,
    description::LaunchConfig,
    event::{Event, Message, RankEvent},
    failure::{OtherRank, StoppedRank},
    outcome::{ExitReason, RankExit, root_cause},
    process::{KILL_WAIT, Process},
    pulse::{HeartbeatMonitor, TICK},
    report::{NodeReport, RankReport, RootCause, StopRequest},
    terminal::Terminal,
};
use crate::{
    exit,
    interrupt::InterruptKind,
    nodes::{LostNode, NodeEvent, NodeGroup, NodeState, NodeStatus, StopCause},
};

/// How long the others may go on after a rank that ended by the signal of preemption itself: it had no time, or does not
/// know how, to save.
const UNSAVED: Duration = Duration::from_secs(3);

/// How far the end of the round has come, with the time of the next step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// A rank failed; the others may show why.
    AwaitingRootCause {
        until: Instant,
    },
    /// The ranks save a checkpoint.
    Preempting {
        until: Instant,
    },
    /// The ranks were told to end.
    Stopping {
        until: Instant,
    },
    Killed {
        until: Instant,
    },
}

impl Phase {
    fn until(self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::AwaitingRootCause { until }
            | Self::Preempting { until }
            | Self::Stopping { until }
            | Self::Killed { until } => Some(until),
        }
    }
}

/// What a round needs.
pub struct Round<'a> {
    pub launch: &'a LaunchConfig,
    pub number: u32,
    /// When all nodes started their ranks.
    pub epoch: Instant,
    pub host: &'a str,
    pub messages: &'a Receiver<Message>,
    /// The other nodes, where there are any.
    pub nodes: Option<&'a NodeGroup>,
    pub on_event: &'a mut dyn FnMut(Event),
    pub ranks: Vec<Process>,
    pub terminal: Option<Terminal>,
}

/// How it ended.
pub struct Finished {
    /// Of all nodes; of this one alone where the others were lost.
    pub reports: Vec<NodeReport>,
    pub lost: Option<LostNode>,
}

impl Round<'_> {
    pub fn run(self) -> Finished {
        let nodes = self.nodes;
        let mut supervisor = Supervisor {
            round: self,
            phase: Phase::Running,
            state: NodeState::Running,
            cause: StopCause::None,
            stop_request: None,
            signalled: false,
            ends: vec![],
            stopped: vec![],
            lost: None,
            reports: None,
            last_look: Instant::now(),
        };
        supervisor.publish();
        while supervisor.has_ranks() {
            supervisor.turn();
        }
        supervisor.drain();
        if nodes.is_some() {
            supervisor.state = NodeState::Finished;
            supervisor.publish();
            while supervisor.reports.is_none() && supervisor.lost.is_none() {
                supervisor.turn();
            }
        }
        supervisor.finished()
    }
}

struct Supervisor<'a> {
    round: Round<'a>,
    phase: Phase,
    /// What the other nodes are told of this one.
    state: NodeState,
    cause: StopCause,
    /// Who told the ranks to end before any failed.
    stop_request: Option<StopRequest>,
    /// Whether this launcher itself got a signal.
    signalled: bool,
    ends: Vec<RankExit>,
    stopped: Vec<StoppedRank>,
    lost: Option<LostNode>,
    reports: Option<Vec<NodeReport>>,
    last_look: Instant,
}

impl Supervisor<'_> {
    fn has_ranks(&self) -> bool {
        self.round.ranks.iter().any(|rank| rank.end.is_none())
    }

    /// Waits for the next message or moment, and acts on it.
    fn turn(&mut self) {
        let look = self.last_look + TICK;
        let next = self.phase.until().map_or(look, |until| until.min(look));
        if let Ok(message) = self.round.messages.recv_timeout(next.saturating_duration_since(Instant::now()))
        {
            self.take(message);
        }
        let now = Instant::now();
        if now >= look {
            self.look();
        }
        if self.phase.until().is_some_and(|until| now >= until) && self.has_ranks() {
            self.next_phase();
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Rank { round, local_rank, news } if round == self.round.number => {
                self.hear(local_rank, news);
            }
            // Of an earlier round: what had left a rank's process group may still write.
            Message::Rank { .. } => {}
            Message::Signal(SIGWINCH) => self.round.terminal.iter().for_each(Terminal::copy_size),
            Message::Signal(SIGTSTP) => self.suspend(),
            Message::Signal(signal) => self.interrupt(signal),
            Message::Node(NodeEvent::Statuses(_, table)) => self.others_say(&table),
            Message::Node(NodeEvent::Reports(reports)) => self.reports = Some(reports),
            Message::Node(NodeEvent::Lost(lost)) => {
                self.lost = Some(LostNode { after: Some(self.round.epoch.elapsed()), ..lost });
                self.await_root_cause();
            }
            Message::Node(NodeEvent::Joined(_) | NodeEvent::JoinFailed(_) | NodeEvent::Left) => {}
        }
    }

    fn hear(&mut self, i: usize, news: RankEvent) {
        match news {
            RankEvent::Exited(at) => self.ended(i, at),
            RankEvent::StreamEnded => self.round.ranks[i].open_streams -= 1,
            RankEvent::LogLost(error) => {
                let Process { rank, log, .. } = &self.round.ranks[i];
                (self.round.on_event)(Event::LogLost { rank: *rank, path: log.path().to_owned(), error });
            }
        }
    }

    fn ended(&mut self, i: usize, at: Instant) {
        if self.round.ranks[i].end.is_some() {
            return;
        }
        let phase = self.phase;
        let stopped = |reason: ExitReason| match phase {
            Phase::Stopping { .. } | Phase::Killed { .. } => true,
            // A program that knows no preemption ends by the signal, or with what shells make of it.
            Phase::Preempting { .. } => {
                matches!(reason, ExitReason::Signal(SIGTERM)) || matches!(reason, ExitReason::Code(130 | 143))
            }
            Phase::Running | Phase::AwaitingRootCause { .. } => false,
        };
        let after = at.saturating_duration_since(self.round.epoch);
        let end = self.round.ranks[i].reap(after, stopped);
        self.ends.push(end);
        (self.round.on_event)(Event::Exited(end));
        if let Phase::Preempting { until } = self.phase
            && end.stopped_by_launcher
        {
            // Without a rank nothing can be saved: what still waits for it need not wait for the whole grace.
            self.phase = Phase::Preempting { until: until.min(Instant::now() + UNSAVED) };
        }
        match end.reason {
            reason if reason.is_success() || end.stopped_by_launcher => {}
            reason if reason.is_preempted() => {
                if self.phase == Phase::Running {
                    let by = format!("rank {}, which left with exit code {}", end.rank, exit::PREEMPTED);
                    self.preempt(by, 0);
                }
            }
            _ => self.fail(),
        }
    }

    /// A rank of this node failed.
    fn fail(&mut self) {
        if !matches!(self.cause, StopCause::Requested(InterruptKind::Stop, _)) {
            self.cause = StopCause::Failed;
            self.publish();
        }
        self.await_root_cause();
    }

    /// Something failed, here or elsewhere: the other ranks are ended in a moment.
    fn await_root_cause(&mut self) {
        if matches!(self.phase, Phase::Running | Phase::Preempting { .. }) {
            let stopped = self.round.ranks.iter().filter(|rank| rank.end.is_none());
            self.stopped = stopped.filter_map(|rank| rank.pulse.stopped(rank.rank)).collect();
            self.phase = Phase::AwaitingRootCause { until: Instant::now() + ROOT_CAUSE_WINDOW };
        }
    }

    fn next_phase(&mut self) {
        match self.phase {
            Phase::Running => {}
            Phase::AwaitingRootCause { .. } => self.stop(),
            Phase::Preempting { .. } | Phase::Stopping { .. } => self.kill(),
            Phase::Killed { .. } => self.abandon(),
        }
    }

    fn stop(&mut self) {
        self.phase = Phase::Stopping { until: Instant::now() + self.round.launch.grace };
        self.signal(Signal::INT);
        // A rank that somebody has stopped could not end.
        self.signal(Signal::CONT);
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed { until: Instant::now() + KILL_WAIT };
        self.signal(Signal::KILL);
        let left = self.round.ranks.iter().filter(|rank| rank.end.is_none());
        let ranks: Vec<usize> = left.map(|rank| rank.rank).collect();
        if !ranks.is_empty() {
            (self.round.on_event)(Event::Killed { ranks });
        }
    }

    fn abandon(&mut self) {
        let after = self.round.epoch.elapsed();
        for rank in self.round.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            let end = rank.abandon(after);
            self.ends.push(end);
            (self.round.on_event)(Event::Exited(end));
        }
    }

    /// Listens to the hearts. Where a rank has been silent or stopped for too long, the one that fell silent first is to
    /// blame, or one that somebody has stopped: the others wait for it.
    fn look(&mut self) {
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.last_look, now);
        self.round.ranks.iter_mut().for_each(|rank| rank.look(elapsed));
        if self.phase != Phase::Running {
            return;
        }
        let LaunchConfig { heartbeat_timeout, stopped_timeout, .. } = *self.round.launch;
        let limit = |pulse: &HeartbeatMonitor| match pulse.is_stopped_for(stopped_timeout) {
            true => Some(stopped_timeout),
            false => heartbeat_timeout,
        };
        let alive = self.round.ranks.iter().enumerate().filter(|(_, rank)| rank.end.is_none());
        let silent = alive.clone().filter_map(|(i, rank)| {
            let limit = limit(&rank.pulse)?;
            Some((i, rank.pulse.silent_for(limit)?, limit))
        });
        let Some((longest, silence, limit)) = silent.max_by_key(|(_, silence, _)| *silence) else { return };
        let mut stopped = alive.filter(|(_, rank)| rank.pulse.is_stopped());
        let stopped = stopped.find_map(|(i, rank)| Some((i, rank.pulse.silent_for(Duration::ZERO)?)));
        let (i, silence) = stopped.unwrap_or((longest, silence));
        // Before settling, which remembers who was stopped.
        let after = (self.round.epoch.elapsed() + limit).saturating_sub(silence);
        self.fail();
        self.round.ranks[i].silence(after, silence);
    }

    /// Stops the ranks and then the launcher; goes on when the launcher is continued.
    fn suspend(&self) {
        self.signal(Signal::STOP);
        // It only fails for signals without a default action.
        drop(signal_hook::low_level::emulate_default_handler(SIGTSTP));
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        self.round.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Waits for the rest of the output, up to [`OUTPUT_DRAIN`]: something that left a rank's process group may hold
    /// it open.
    fn drain(&mut self) {
        let deadline = Instant::now() + OUTPUT_DRAIN;
        let mut signals = vec![];
        while self.round.ranks.iter().any(|rank| rank.open_streams > 0) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.round.messages.recv_timeout(left) {
                Ok(Message::Signal(signal)) => signals.push(signal),
                Ok(message) => self.take(message),
                Err(_) => break,
            }
        }
        // Too late for this node's ranks.
        if self.round.nodes.is_some() {
            signals.into_iter().for_each(|signal| self.take(Message::Signal(signal)));
        }
    }

    /// Tells the other nodes how far this one is.
    fn publish(&self) {
        let Some(nodes) = self.round.nodes else { return };
        let report = (self.state == NodeState::Finished).then(|| self.report());
        let status = NodeStatus { state: self.state, cause: self.cause, round: self.round.number, port: 0 };
        nodes.publish(status, report.as_ref());
    }

    fn report(&self) -> NodeReport {
        let process = |rank: usize| self.round.ranks.iter().find(|process| process.rank == rank);
        let excerpt = |rank| process(rank).map(|process| process.log.excerpt()).unwrap_or_default();
        let panicked = |rank| !excerpt(rank).0.is_empty();
        let rank_report = |end: &RankExit| {
            let found = process(end.rank);
            let last_heartbeat = found.and_then(|process| process.pulse.last_heartbeat()).map(Into::into);
            let said = found.and_then(|process| process.log.said());
            RankReport { other: OtherRank { end: *end, said, last_heartbeat }, panicked: panicked(end.rank) }
        };
        let mut ends = self.ends.clone();
        ends.sort_by_key(|end| (end.after, end.rank));
        let root = root_cause(ends.iter(), panicked).map(|index| {
            let rank = ends[index].rank;
            let (panic, last_lines) = excerpt(rank);
            let log = process(rank).map(|process| process.log.path().to_owned()).unwrap_or_default();
            RootCause { rank, panic, last_lines, log }
        });
        NodeReport {
            node: self.round.launch.node_rank,
            host: self.round.host.to_owned(),
            stop_request: self.stop_request.clone(),
            signalled: self.signalled,
            ranks: ends.iter().map(rank_report).collect(),
            root,
            stopped: self.stopped.clone(),
        }
    }

    fn finished(self) -> Finished {
        match self.reports {
            Some(reports) => Finished { reports, lost: None },
            None => Finished { reports: vec![self.report()], lost: self.lost },
        }
    }
}
