//! Runs the ranks of this node until all of them have exited.

use std::{sync::mpsc::Receiver, time::Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGTERM, SIGTSTP, SIGWINCH};

use super::phase::Phase;
use crate::{
    exit,
    interrupt::InterruptKind,
    launcher::{
        config::LaunchConfig,
        deadlines::{AFTER_UNSAVED_RANK, OUTPUT_DRAIN, ROOT_CAUSE_WINDOW},
        message::Message,
        node_group::{NodeEvent, NodeGroup, NodeState, NodeStatus, StopCause},
        outcome::{
            event::Event,
            failure::StoppedRank,
            rank_exit::{ExitReason, RankExit},
            report::{LostNode, NodeReport, StopRequest},
        },
        process::{RankEvent, RankProcess, TICK, Terminal},
    },
};

/// The ranks of this node, in one start (what TorchElastic calls a worker group).
pub struct LocalRanks<'a> {
    pub launch: &'a LaunchConfig,
    /// How often the ranks were restarted before.
    pub restart_count: u32,
    /// When all nodes started their ranks.
    pub epoch: Instant,
    pub host: &'a str,
    /// The numbers that users know the nodes by, in order of their numbers in this start.
    pub numbers: &'a [usize],
    /// Who came later and can be taken in now.
    pub waiting_nodes: &'a dyn Fn() -> Option<String>,
    pub messages: &'a Receiver<Message>,
    /// The other nodes, where there are any.
    pub node_group: Option<&'a NodeGroup>,
    pub on_event: &'a mut dyn FnMut(Event),
    pub ranks: Vec<RankProcess>,
    pub terminal: Option<Terminal>,
}

/// What is known once its ranks have exited.
pub struct LocalRanksResult {
    /// Of all nodes; of this one alone where the others were lost.
    pub reports: Vec<NodeReport>,
    /// The nodes whose launchers got a signal, as far as this one has heard of it.
    pub signalled: Vec<usize>,
    pub lost: Option<LostNode>,
}

impl LocalRanks<'_> {
    /// Returns when the ranks of all nodes have exited, or the other nodes were lost and those of this one have exited.
    pub fn run(self) -> LocalRanksResult {
        let has_other_nodes = self.node_group.is_some();
        let mut supervisor = Supervisor {
            group: self,
            phase: Phase::Running,
            state: NodeState::Running,
            cause: StopCause::None,
            stop_request: None,
            signalled: false,
            signalled_nodes: vec![],
            exits: vec![],
            stopped_ranks: vec![],
            lost: None,
            reports: None,
            last_poll: Instant::now(),
        };
        supervisor.publish();
        while supervisor.has_ranks() {
            supervisor.step();
        }
        supervisor.drain();
        if has_other_nodes {
            supervisor.state = NodeState::Finished;
            supervisor.publish();
            while supervisor.reports.is_none() && supervisor.lost.is_none() {
                supervisor.step();
            }
        }
        supervisor.finish()
    }
}

pub(super) struct Supervisor<'a> {
    pub(super) group: LocalRanks<'a>,
    pub(super) phase: Phase,
    /// What the other nodes learn about this one.
    pub(super) state: NodeState,
    pub(super) cause: StopCause,
    /// The request to end the ranks that came before any of them failed.
    pub(super) stop_request: Option<StopRequest>,
    /// Whether this launcher itself got a signal.
    pub(super) signalled: bool,
    /// The nodes whose launchers said that they got one.
    pub(super) signalled_nodes: Vec<usize>,
    pub(super) exits: Vec<RankExit>,
    pub(super) stopped_ranks: Vec<StoppedRank>,
    pub(super) lost: Option<LostNode>,
    pub(super) reports: Option<Vec<NodeReport>>,
    pub(super) last_poll: Instant,
}

impl Supervisor<'_> {
    /// Whether ranks are still running.
    pub(super) fn has_ranks(&self) -> bool {
        self.group.ranks.iter().any(|rank| rank.exit.is_none())
    }

    /// Waits for the next message or deadline, and acts on it.
    fn step(&mut self) {
        let poll = self.last_poll + TICK;
        // A phase whose ranks have ended has nothing left to do at its end.
        let until = self.phase.until().filter(|_| self.has_ranks());
        let next = until.map_or(poll, |until| until.min(poll));
        if let Ok(message) = self.group.messages.recv_timeout(next.saturating_duration_since(Instant::now()))
        {
            self.handle(message);
        }
        let now = Instant::now();
        if now >= poll {
            self.poll_heartbeats();
            self.look_for_waiting_nodes();
        }
        if self.has_ranks() && self.phase.until().is_some_and(|until| now >= until) {
            self.next_phase();
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Rank { restart_count, local_rank, event }
                if restart_count == self.group.restart_count =>
            {
                self.handle_rank(local_rank, event);
            }
            // Of an earlier start: a process that had left a rank's process group may still write.
            Message::Rank { .. } => {}
            Message::Signal(SIGWINCH) => self.group.terminal.iter().for_each(Terminal::copy_size),
            Message::Signal(SIGTSTP) => self.suspend(),
            Message::Signal(signal) => self.handle_signal(signal),
            Message::Node(NodeEvent::Statuses(_, statuses)) => self.handle_statuses(&statuses),
            Message::Node(NodeEvent::Reports(reports)) => self.reports = Some(reports),
            Message::Node(NodeEvent::Lost(lost)) => {
                self.lost = Some(LostNode { after: Some(self.group.epoch.elapsed()), ..lost });
                self.await_root_cause();
            }
            // The others come between starts.
            Message::Node(_) => {}
        }
    }

    fn handle_rank(&mut self, i: usize, event: RankEvent) {
        match event {
            RankEvent::Exited(at) => self.handle_exit(i, at),
            RankEvent::StreamEnded => self.group.ranks[i].open_streams -= 1,
            RankEvent::LogLost(error) => {
                let RankProcess { rank, log, .. } = &self.group.ranks[i];
                (self.group.on_event)(Event::LogLost { rank: *rank, path: log.path().to_owned(), error });
            }
        }
    }

    fn handle_exit(&mut self, i: usize, at: Instant) {
        if self.group.ranks[i].exit.is_some() {
            return;
        }
        let phase = self.phase;
        let stopped = |reason: ExitReason| match phase {
            Phase::Stopping { .. } | Phase::Killed { .. } => true,
            // A program that does not handle preemption dies of the signal, or exits with what shells make of it.
            Phase::Preempting { .. } => {
                matches!(reason, ExitReason::Signal(SIGTERM)) || matches!(reason, ExitReason::Code(130 | 143))
            }
            Phase::Running | Phase::AwaitingRootCause { .. } => false,
        };
        let after = at.saturating_duration_since(self.group.epoch);
        let exit = self.group.ranks[i].reap(after, stopped);
        self.exits.push(exit);
        (self.group.on_event)(Event::Exited(exit));
        if let Phase::Preempting { until } = self.phase
            && exit.stopped_by_launcher
        {
            // Without this rank nothing can be saved: the others need not wait for the whole grace period.
            self.phase = Phase::Preempting { until: until.min(Instant::now() + AFTER_UNSAVED_RANK) };
        }
        match exit.reason {
            reason if reason.is_success() || exit.stopped_by_launcher => {}
            reason if reason.is_preempted() => {
                if self.phase == Phase::Running {
                    let source = format!("rank {}, which exited with code {}", exit.rank, exit::PREEMPTED);
                    self.preempt(source, 0);
                }
            }
            _ => self.fail(),
        }
    }

    /// A rank of this node failed.
    pub(super) fn fail(&mut self) {
        if !matches!(self.cause, StopCause::Requested(InterruptKind::Stop, _)) {
            self.cause = StopCause::Failed;
            self.publish();
        }
        self.await_root_cause();
    }

    /// Something failed, here or elsewhere: the other ranks are stopped in a moment.
    pub(super) fn await_root_cause(&mut self) {
        if matches!(self.phase, Phase::Running | Phase::Preempting { .. }) {
            let stopped = self.group.ranks.iter().filter(|rank| rank.exit.is_none());
            self.stopped_ranks = stopped.filter_map(|rank| rank.heartbeat.stopped(rank.rank)).collect();
            self.phase = Phase::AwaitingRootCause { until: Instant::now() + ROOT_CAUSE_WINDOW };
        }
    }

    /// Stops the ranks and then the launcher; continues when the launcher is continued.
    fn suspend(&self) {
        self.signal(Signal::STOP);
        // It only fails for signals without a default action.
        drop(signal_hook::low_level::emulate_default_handler(SIGTSTP));
        self.signal(Signal::CONT);
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.group.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    /// Waits for the rest of the output, up to [`OUTPUT_DRAIN`]: a process that left a rank's process group may hold
    /// it open.
    fn drain(&mut self) {
        let deadline = Instant::now() + OUTPUT_DRAIN;
        let mut signals = vec![];
        while self.group.ranks.iter().any(|rank| rank.open_streams > 0) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.group.messages.recv_timeout(left) {
                Ok(Message::Signal(signal)) => signals.push(signal),
                Ok(message) => self.handle(message),
                Err(_) => break,
            }
        }
        // Too late for this node's ranks, but other nodes may still have some.
        if self.group.node_group.is_some() {
            signals.into_iter().for_each(|signal| self.handle(Message::Signal(signal)));
        }
    }

    /// Sends this node's status, and its report once it has one, to the other nodes.
    pub(super) fn publish(&self) {
        let Some(nodes) = self.group.node_group else { return };
        let report = (self.state == NodeState::Finished).then(|| self.report());
        let status = NodeStatus {
            state: self.state,
            cause: self.cause,
            signalled: self.signalled,
            restart_count: self.group.restart_count,
            port: 0,
        };
        nodes.publish(status, report.as_ref());
    }

    fn finish(self) -> LocalRanksResult {
        match self.reports {
            Some(reports) => {
                let signalled = reports.iter().filter(|report| report.signalled).map(|report| report.node);
                LocalRanksResult { signalled: signalled.collect(), reports, lost: None }
            }
            None => {
                let own = self.report();
                let mut signalled = self.signalled_nodes;
                if own.signalled && !signalled.contains(&own.node) {
                    signalled.push(own.node);
                }
                LocalRanksResult { signalled, reports: vec![own], lost: self.lost }
            }
        }
    }
}
