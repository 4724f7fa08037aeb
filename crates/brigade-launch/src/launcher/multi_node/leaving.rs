//! Nodes of an elastic world whose launchers got a signal: they leave, and the others stay.

use super::node::Node;
use crate::{
    interrupt::InterruptKind,
    launcher::{
        local_ranks::LocalRanksResult,
        outcome::{
            Outcome,
            decision::{Decision, decide, decide_without_others},
            event::Event,
            rank_exit::ExitReason,
            report::NodeReport,
        },
    },
};

impl Node<'_> {
    /// What follows from how the ranks ended, and the nodes whose launchers got a signal.
    pub(super) fn decide(&self, result: LocalRanksResult, restarts: u32) -> (Decision, Vec<usize>) {
        let LocalRanksResult { mut reports, signalled: leaving, lost } = result;
        let takes_nodes_alone = self.takes_nodes_alone(&leaving, &reports);
        if takes_nodes_alone {
            Self::forgive_signals(&mut reports, lost.is_some());
        }
        let mut decision = match (lost, reports.pop()) {
            (Some(lost), Some(own)) => decide_without_others(own, lost, &self.nodes, restarts),
            (_, last) => {
                reports.extend(last);
                decide(reports, restarts)
            }
        };
        // Ranks that did not save in time were stopped for these nodes alone; beside one that nothing ends no other is started.
        let are_gone = match &decision.outcome {
            Outcome::Interrupted { exits, .. } => {
                exits.iter().all(|exit| exit.reason != ExitReason::Unkillable)
            }
            _ => false,
        };
        decision.may_restart |= takes_nodes_alone && are_gone;
        (decision, leaving)
    }

    /// Makes the end of the ranks count as one without a signal, which would keep them from being started again. Where all ranks saved or
    /// are done, the reports stay as they are but for that; if others are lost, those of this node must have ended by themselves.
    fn forgive_signals(reports: &mut [NodeReport], is_lost: bool) {
        let mut exits = reports.iter().flat_map(|report| &report.ranks).map(|report| &report.rank.exit);
        let have_all_saved = exits.all(|exit| exit.is_clean() && !(is_lost && exit.stopped_by_launcher));
        for report in reports {
            report.signalled = false;
            if !have_all_saved
                && report.stop_request.as_ref().is_some_and(|request| request.kind == InterruptKind::Preempt)
            {
                report.stop_request = None;
            }
        }
    }

    /// Whether signals to the launchers of these nodes take away the nodes, and not the run.
    fn takes_nodes_alone(&self, leaving: &[usize], reports: &[NodeReport]) -> bool {
        let mut requests = reports.iter().filter_map(|report| report.stop_request.as_ref());
        self.config.is_elastic()
            && !leaving.is_empty()
            && !leaving.contains(&0)
            && requests.all(|request| request.kind == InterruptKind::Preempt)
    }

    /// Whether this node of an elastic world stays while others, whose launchers got a signal, leave once all have saved, have failed or were
    /// stopped.
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
            _ if may_restart => "its launcher received a signal, and not all ranks saved".into(),
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
        report::{LostNode, RankReport, StopOrigin, StopRequest},
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
            Node::forgive_signals(&mut reports, false);
            decide(reports, 0)
        };
        let failed = decision([1, 75]);
        assert!(failed.may_restart && matches!(failed.outcome, Outcome::Failed(_)));
        let saved = decision([75, 75]);
        assert!(!saved.may_restart && saved.outcome.exit_code() == 75);
        assert_eq!(decision([0, 0]).outcome, Outcome::Done);
    }

    #[test]
    fn a_loss_beside_a_signal_to_one_node_may_be_started_again_unless_all_had_saved() {
        let nodes = [(0, "h".to_owned()), (1, "h".to_owned())];
        let decision = |code: i32, stopped_by_launcher: bool| {
            let mut reports = [report(0, code, true)];
            reports[0].ranks[0].rank.exit.stopped_by_launcher = stopped_by_launcher;
            Node::forgive_signals(&mut reports, true);
            let [own] = reports;
            decide_without_others(own, LostNode::unknown("gone"), &nodes, 0)
        };
        for (code, stopped_by_launcher) in [(1, false), (130, true), (75, true)] {
            let lost = decision(code, stopped_by_launcher);
            assert!(lost.may_restart && matches!(lost.outcome, Outcome::NodeLost(_)), "{code}");
        }
        assert!(matches!(decision(75, false).outcome, Outcome::Preempted { .. }));
    }
}
