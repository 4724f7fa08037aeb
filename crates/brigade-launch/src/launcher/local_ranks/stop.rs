//! Stops the ranks: SIGINT, then SIGKILL.

use std::time::Instant;

use rustix::process::Signal;

use super::{phase::Phase, supervisor::Supervisor};
use crate::launcher::{deadlines::KILL_WAIT, outcome::event::Event};

impl Supervisor<'_> {
    /// Goes on to the next phase of stopping the ranks, at the deadline of the present one.
    pub(super) fn next_phase(&mut self) {
        match self.phase {
            Phase::Running => {}
            Phase::AwaitingRootCause { .. } => self.stop(),
            Phase::Preempting { .. } | Phase::Stopping { .. } => self.kill(),
            Phase::Killed { .. } => self.abandon(),
        }
    }

    /// Asks the ranks to end.
    pub(super) fn stop(&mut self) {
        self.phase = Phase::Stopping { until: Instant::now() + self.group.launch.grace_period };
        self.signal(Signal::INT);
        // A rank that a signal has stopped could not exit.
        self.signal(Signal::CONT);
    }

    pub(super) fn kill(&mut self) {
        self.phase = Phase::Killed { until: Instant::now() + KILL_WAIT };
        self.signal(Signal::KILL);
        let left = self.group.ranks.iter().filter(|rank| rank.exit.is_none());
        let ranks: Vec<usize> = left.map(|rank| rank.rank).collect();
        if !ranks.is_empty() {
            (self.group.on_event)(Event::Killed { ranks });
        }
    }

    /// Gives up on ranks that were killed and are still there.
    fn abandon(&mut self) {
        let after = self.group.epoch.elapsed();
        for rank in self.group.ranks.iter_mut().filter(|rank| rank.exit.is_none()) {
            let exit = rank.abandon(after);
            self.exits.push(exit);
            (self.group.on_event)(Event::Exited(exit));
        }
    }
}
