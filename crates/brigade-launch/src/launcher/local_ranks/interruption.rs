//! Requests to end the ranks before any of them failed: signals to this launcher, and the other nodes.

use std::time::Instant;

use rustix::process::Signal;

use super::{phase::Phase, supervisor::Supervisor};
use crate::{
    exit,
    interrupt::InterruptKind,
    launcher::{
        config::StandardStreams,
        deadlines::PREEMPTION_MARGIN,
        node_group::{NodeStatus, StopCause},
        outcome::{
            event::Event,
            rank_exit::signal_name,
            report::{LostNode, StopOrigin, StopRequest},
        },
    },
};

impl Supervisor<'_> {
    /// Acts on the statuses of the other nodes.
    pub(super) fn handle_statuses(&mut self, statuses: &[NodeStatus]) {
        self.note_signalled(statuses);
        let node = self.group.launch.node_rank;
        for (other, status) in statuses.iter().enumerate().filter(|(other, _)| *other != node) {
            let other = self.group.numbers.get(other).copied().unwrap_or(other);
            let source = |signal| match signal {
                0 => format!("node {other}, where a rank exited with code {}", exit::PREEMPTED),
                signal => format!("{} on node {other}", signal_name(signal)),
            };
            match (status.cause, self.phase) {
                (StopCause::Failed, _) => self.await_root_cause(),
                (StopCause::Resize, Phase::Running) => self.resize("another node".into()),
                (StopCause::Requested(InterruptKind::Preempt, signal), Phase::Running) => {
                    self.preempt(source(signal), signal)
                }
                (
                    StopCause::Requested(InterruptKind::Stop, signal),
                    Phase::Running | Phase::Preempting { .. },
                ) => {
                    self.interrupt(source(signal), signal);
                }
                _ => {}
            }
        }
    }

    fn note_signalled(&mut self, statuses: &[NodeStatus]) {
        for (status, node) in statuses.iter().zip(self.group.numbers) {
            if status.signalled && !self.signalled_nodes.contains(node) {
                self.signalled_nodes.push(*node);
            }
        }
    }

    /// This launcher got a signal.
    pub(super) fn handle_signal(&mut self, signal: i32) {
        let first = !std::mem::replace(&mut self.signalled, true);
        if first {
            self.publish();
        }
        let kind = match self.group.launch.streams {
            StandardStreams::Logged => InterruptKind::of(signal),
            StandardStreams::Results | StandardStreams::Dialogue => InterruptKind::Stop,
        };
        let source = signal_name(signal);
        match self.phase {
            _ if !self.has_ranks() => self.handle_signal_without_ranks(kind, first, signal),
            Phase::Running if kind == InterruptKind::Preempt => self.preempt(source, signal),
            Phase::Running => self.interrupt(source, signal),
            Phase::AwaitingRootCause { .. } => {
                (self.group.on_event)(Event::Interrupted { signal: source });
                self.stop();
            }
            // The cluster signals every node, and another one was first; or the ranks save for another node already.
            Phase::Preempting { .. } if first && kind == InterruptKind::Preempt => {
                if self.stop_request.as_ref().is_some_and(|request| request.origin == StopOrigin::WaitingNode)
                {
                    self.request_stop(kind, source, signal);
                }
            }
            Phase::Preempting { .. } => {
                self.request_stop(InterruptKind::Stop, source.clone(), signal);
                (self.group.on_event)(Event::Interrupted { signal: source });
                self.kill();
            }
            Phase::Stopping { .. } if first && self.stop_request.is_some() => {}
            Phase::Stopping { .. } => self.kill(),
            Phase::Killed { .. } => {}
        }
    }

    /// A signal while only the ranks of other nodes still run. After a second one this launcher does not wait for them.
    fn handle_signal_without_ranks(&mut self, kind: InterruptKind, first: bool, signal: i32) {
        if first {
            self.request_stop(kind, signal_name(signal), signal);
        } else {
            self.request_stop(InterruptKind::Stop, signal_name(signal), signal);
            let after = Some(self.group.epoch.elapsed());
            self.lost = Some(LostNode {
                node: None,
                reason: "a second signal came while this launcher was waiting for them".into(),
                after,
            });
        }
    }

    fn request_stop(&mut self, kind: InterruptKind, source: String, signal: i32) {
        let origin = if signal == 0 { StopOrigin::Rank } else { StopOrigin::Signal };
        self.stop_request = Some(StopRequest { kind, source, origin });
        self.cause = StopCause::Requested(kind, signal);
        self.publish();
    }

    pub(super) fn preempt(&mut self, source: String, signal: i32) {
        self.request_stop(InterruptKind::Preempt, source.clone(), signal);
        (self.group.on_event)(Event::Preempted { signal: source });
        self.let_save();
    }

    /// The ranks save what they have, and are started again with a node that came later.
    fn resize(&mut self, source: String) {
        let (kind, origin) = (InterruptKind::Preempt, StopOrigin::WaitingNode);
        self.stop_request = Some(StopRequest { kind, source: source.clone(), origin });
        self.cause = StopCause::Resize;
        self.publish();
        (self.group.on_event)(Event::Resizing { reason: source });
        self.let_save();
    }

    /// On node 0: whether a node came later that can be taken in now.
    pub(super) fn look_for_waiting_nodes(&mut self) {
        if self.phase == Phase::Running
            && self.has_ranks()
            && let Some(source) = (self.group.waiting_nodes)()
        {
            self.resize(source);
        }
    }

    fn let_save(&mut self) {
        let grace = self.group.launch.preemption_grace + PREEMPTION_MARGIN;
        self.phase = Phase::Preempting { until: Instant::now() + grace };
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn interrupt(&mut self, source: String, signal: i32) {
        self.request_stop(InterruptKind::Stop, source.clone(), signal);
        (self.group.on_event)(Event::Interrupted { signal: source });
        self.stop();
    }
}
