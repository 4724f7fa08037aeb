//! Nodes of an elastic world whose launchers got a signal: they leave, and the others stay.

use super::node::Node;
use crate::{
    interrupt::InterruptKind,
    launcher::outcome::{Outcome, event::Event, report::NodeReport},
};

impl Node<'_> {
    /// Makes a failure count as one without a signal, which would keep the ranks from being started again. Where all ranks saved or are
    /// done, the reports stay as they are but for that.
    pub(super) fn forgive_signals(reports: &mut [NodeReport]) {
        let exits = || reports.iter().flat_map(|report| &report.ranks).map(|report| &report.rank.exit);
        let has_failed = exits().any(|exit| !exit.stopped_by_launcher && !exit.is_clean());
        for report in reports {
            report.signalled = false;
            if has_failed
                && report.stop_request.as_ref().is_some_and(|request| request.kind == InterruptKind::Preempt)
            {
                report.stop_request = None;
            }
        }
    }

    /// Whether signals to the launchers of these nodes take away the nodes, and not the run.
    pub(super) fn takes_nodes_alone(&self, leaving: &[usize]) -> bool {
        self.config.is_elastic() && !leaving.is_empty() && !leaving.contains(&0)
    }

    /// Whether this node of an elastic world stays while others, whose launchers got a signal, leave once all have saved or failed.
    pub(super) fn stays(
        &mut self,
        outcome: &Outcome,
        may_restart: bool,
        leaving: &[usize],
        on_event: &mut dyn FnMut(Event),
    ) -> bool {
        let is_own = |node: &usize| *node == 0 || *node == self.config.node_rank;
        let signal = match outcome {
            Outcome::Preempted { signal, .. } => signal.clone(),
            _ if may_restart => "its launcher received a signal".into(),
            _ => return false,
        };
        if !self.config.is_elastic() || leaving.is_empty() || leaving.iter().any(is_own) {
            return false;
        }
        self.expected.retain(|node| !leaving.contains(node));
        for (node, host) in self.nodes.iter().filter(|(node, _)| leaving.contains(node)) {
            let (node, host, reason) = (Some(*node), Some(host.clone()), signal.clone());
            on_event(Event::NodeLeft { node, host, reason });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::launcher::outcome::{
        decision::decide,
        failure::OtherRank,
        rank_exit::{ExitReason, RankExit},
        report::{RankReport, StopOrigin, StopRequest},
    };

    fn report(node: usize, code: i32, is_signalled: bool) -> NodeReport {
        let exit = RankExit {
            rank: node,
            reason: ExitReason::Code(code),
            after: Duration::ZERO,
            stopped_by_launcher: false,
        };
        let (kind, origin) = (InterruptKind::Preempt, StopOrigin::Signal);
        let request = StopRequest { kind, source: "SIGTERM (15)".into(), origin };
        NodeReport {
            node,
            host: "h".into(),
            stop_request: is_signalled.then_some(request),
            signalled: is_signalled,
            ranks: vec![RankReport {
                rank: OtherRank { exit, error_line: None, last_heartbeat: None },
                panicked: false,
            }],
            root_cause: None,
            stopped_ranks: vec![],
        }
    }

    #[test]
    fn a_failure_beside_a_signal_to_one_node_may_be_started_again() {
        let decision = |codes: [i32; 2]| {
            let mut reports = vec![report(0, codes[0], false), report(1, codes[1], true)];
            Node::forgive_signals(&mut reports);
            decide(reports, 0)
        };
        let failed = decision([1, 75]);
        assert!(failed.may_restart && matches!(failed.outcome, Outcome::Failed(_)));
        let saved = decision([75, 75]);
        assert!(!saved.may_restart && saved.outcome.exit_code() == 75);
        assert_eq!(decision([0, 0]).outcome, Outcome::Done);
    }
}
