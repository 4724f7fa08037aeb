//! Who tells a round to end before its ranks do: this launcher's signals, and the other nodes.

use std::time::Instant;

use rustix::process::Signal;

use super::{Phase, Supervisor};
use crate::{
    exit,
    interrupt::InterruptKind,
    nodes::{LostNode, NodeStatus, StopCause},
    supervisor::{PREEMPTION_MARGIN, event::Event, outcome::signal_name, report::StopRequest},
};

impl Supervisor<'_> {
    /// What the other nodes have to say; decided alike on all nodes.
    pub(super) fn others_say(&mut self, table: &[NodeStatus]) {
        let node = self.round.launch.node_rank;
        for (other, status) in table.iter().enumerate().filter(|(other, _)| *other != node) {
            let by = |signal| match signal {
                0 => format!("node {other}, where a rank left with exit code {}", exit::PREEMPTED),
                signal => format!("{} on node {other}", signal_name(signal)),
            };
            match (status.cause, self.phase) {
                (StopCause::Failed, _) => self.await_root_cause(),
                (StopCause::Requested(InterruptKind::Preempt, signal), Phase::Running) => {
                    self.preempt(by(signal), signal)
                }
                (
                    StopCause::Requested(InterruptKind::Stop, signal),
                    Phase::Running | Phase::Preempting { .. },
                ) => {
                    self.end_by(by(signal), signal);
                }
                _ => {}
            }
        }
    }

    /// This launcher got a signal.
    pub(super) fn interrupt(&mut self, signal: i32) {
        let (kind, first) = (InterruptKind::of(signal), !std::mem::replace(&mut self.signalled, true));
        let by = signal_name(signal);
        match self.phase {
            _ if !self.has_ranks() => self.interrupt_others(kind, first, signal),
            Phase::Running if kind == InterruptKind::Preempt => self.preempt(by, signal),
            Phase::Running => self.end_by(by, signal),
            Phase::AwaitingRootCause { .. } => {
                (self.round.on_event)(Event::Interrupted { signal: by });
                self.stop();
            }
            // The cluster tells every node, and another one was first.
            Phase::Preempting { .. } if first && kind == InterruptKind::Preempt => {}
            Phase::Preempting { .. } => {
                self.note(InterruptKind::Stop, by.clone(), signal);
                (self.round.on_event)(Event::Interrupted { signal: by });
                self.kill();
            }
            Phase::Stopping { .. } if first && self.stop_request.is_some() => {}
            Phase::Stopping { .. } => self.kill(),
            Phase::Killed { .. } => {}
        }
    }

    /// A signal while only the ranks of other nodes still run. A second one leaves them to themselves.
    fn interrupt_others(&mut self, kind: InterruptKind, first: bool, signal: i32) {
        if first {
            self.note(kind, signal_name(signal), signal);
        } else {
            self.note(InterruptKind::Stop, signal_name(signal), signal);
            let after = Some(self.round.epoch.elapsed());
            self.lost = Some(LostNode { node: None, reason: "they were not waited for".into(), after });
        }
    }

    fn note(&mut self, kind: InterruptKind, by: String, signal: i32) {
        self.stop_request = Some(StopRequest { kind, by });
        self.cause = StopCause::Requested(kind, signal);
        self.publish();
    }

    pub(super) fn preempt(&mut self, by: String, signal: i32) {
        self.note(InterruptKind::Preempt, by.clone(), signal);
        (self.round.on_event)(Event::Preempted { signal: by });
        // Longer than a rank gives itself, so that it can say why it leaves.
        let grace = self.round.launch.preemption_grace + PREEMPTION_MARGIN;
        self.phase = Phase::Preempting { until: Instant::now() + grace };
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn end_by(&mut self, by: String, signal: i32) {
        self.note(InterruptKind::Stop, by.clone(), signal);
        (self.round.on_event)(Event::Interrupted { signal: by });
        self.stop();
    }
}
