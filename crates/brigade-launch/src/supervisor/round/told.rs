//! Who tells a round to end before its ranks do: this launcher's signals, and the other nodes.

use std::time::Instant;

use rustix::process::Signal;

use super::{Phase, Supervisor};
use crate::{
    agents::{Cause, Lost, Status},
    exit,
    interrupt::Kind,
    supervisor::{LEEWAY, event::Event, outcome::signal_name, report::Told},
};

impl Supervisor<'_> {
    /// What the other nodes have to say; decided alike on all nodes.
    pub(super) fn others_say(&mut self, table: &[Status]) {
        let node = self.round.launch.node_rank;
        for (other, status) in table.iter().enumerate().filter(|(other, _)| *other != node) {
            let by = |signal| match signal {
                0 => format!("node {other}, where a rank left with exit code {}", exit::PREEMPTED),
                signal => format!("{} on node {other}", signal_name(signal)),
            };
            match (status.cause, self.phase) {
                (Cause::Failed, _) => self.settle(),
                (Cause::Told(Kind::Preempt, signal), Phase::Running) => self.preempt(by(signal), signal),
                (Cause::Told(Kind::Stop, signal), Phase::Running | Phase::Preempting { .. }) => {
                    self.end_by(by(signal), signal);
                }
                _ => {}
            }
        }
    }

    /// This launcher got a signal.
    pub(super) fn interrupt(&mut self, signal: i32) {
        let (kind, first) = (Kind::of(signal), !std::mem::replace(&mut self.signalled, true));
        let by = signal_name(signal);
        match self.phase {
            _ if !self.has_ranks() => self.interrupt_others(kind, first, signal),
            Phase::Running if kind == Kind::Preempt => self.preempt(by, signal),
            Phase::Running => self.end_by(by, signal),
            Phase::Settling { .. } => {
                (self.round.on_event)(Event::Interrupted { signal: by });
                self.stop();
            }
            // The cluster tells every node, and another one was first.
            Phase::Preempting { .. } if first && kind == Kind::Preempt => {}
            Phase::Preempting { .. } => {
                self.note(Kind::Stop, by.clone(), signal);
                (self.round.on_event)(Event::Interrupted { signal: by });
                self.kill();
            }
            Phase::Stopping { .. } if first && self.told.is_some() => {}
            Phase::Stopping { .. } => self.kill(),
            Phase::Killed { .. } => {}
        }
    }

    /// A signal while only the ranks of other nodes still run. A second one leaves them to themselves.
    fn interrupt_others(&mut self, kind: Kind, first: bool, signal: i32) {
        if first {
            self.note(kind, signal_name(signal), signal);
        } else {
            self.note(Kind::Stop, signal_name(signal), signal);
            let after = Some(self.round.epoch.elapsed());
            self.lost = Some(Lost { node: None, reason: "they were not waited for".into(), after });
        }
    }

    fn note(&mut self, kind: Kind, by: String, signal: i32) {
        self.told = Some(Told { kind, by });
        self.cause = Cause::Told(kind, signal);
        self.publish();
    }

    pub(super) fn preempt(&mut self, by: String, signal: i32) {
        self.note(Kind::Preempt, by.clone(), signal);
        (self.round.on_event)(Event::Preempted { signal: by });
        // Longer than a rank gives itself, so that it can say why it leaves.
        let grace = self.round.launch.preemption_grace + LEEWAY;
        self.phase = Phase::Preempting { until: Instant::now() + grace };
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    fn end_by(&mut self, by: String, signal: i32) {
        self.note(Kind::Stop, by.clone(), signal);
        (self.round.on_event)(Event::Interrupted { signal: by });
        self.stop();
    }
}
