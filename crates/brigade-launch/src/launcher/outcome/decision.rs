//! What each node knows of a start of the world when its ranks have ended, and what follows from all of it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    failure::{NodeFailure, OtherRank, RankFailure, StoppedRank},
    outcome::{ExitReason, Outcome, RankExit, root_cause},
    round::Finished,
};
use crate::{exit, interrupt::InterruptKind, nodes::LostNode};

/// Who told the ranks to end before any of them failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    pub kind: InterruptKind,
    /// The signal's name, or the rank that left first.
    pub by: String,
}

/// What one node knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeReport {
    pub node: usize,
    pub host: String,
    pub stop_request: Option<StopRequest>,
    /// Whether its launcher got a signal at any time.
    pub signalled: bool,
    pub ranks: Vec<RankReport>,
    /// Of the rank that this node alone would blame: the world's is one of them.
    pub root: Option<RootCause>,
    pub stopped: Vec<StoppedRank>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankReport {
    pub other: OtherRank,
    pub panicked: bool,
}

/// What is shown of the rank to blame.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RootCause {
    pub rank: usize,
    pub panic: Vec<String>,
    pub last_lines: Vec<String>,
    pub log: PathBuf,
}

/// How a start of the world ended.
pub struct Decision {
    pub outcome: Outcome,
    /// Whether starting it again can help.
    pub may_restart: bool,
}

impl Decision {
    fn last(outcome: Outcome) -> Self {
        Self { outcome, may_restart: false }
    }
}

/// The outcome of the `restarts`-th restart.
pub fn decide(finished: Finished, hosts: &[String], restarts: u32) -> Decision {
    let Finished { mut reports, lost } = finished;
    match (lost, reports.pop()) {
        (Some(lost), Some(own)) => decide_without_others(own, lost, hosts, restarts),
        (_, last) => {
            reports.extend(last);
            decide_with_all(reports, restarts)
        }
    }
}

/// All nodes have the same reports and come to the same decision.
fn decide_with_all(reports: Vec<NodeReport>, restarts: u32) -> Decision {
    let nnodes = reports.len();
    let mut ranks: Vec<(usize, &RankReport)> = Vec::new();
    for (at, report) in reports.iter().enumerate() {
        ranks.extend(report.ranks.iter().map(|rank| (at, rank)));
    }
    ranks.sort_by_key(|(_, rank)| (rank.other.end.after, rank.other.end.rank));
    let ends = || ranks.iter().map(|(_, rank)| rank.other.end).collect::<Vec<RankExit>>();
    let stop_request = |kind| {
        let requests = reports.iter().filter_map(|report| report.stop_request.as_ref());
        requests.filter(|request| request.kind == kind).map(|request| request.by.clone()).next()
    };
    if let Some(signal) = stop_request(InterruptKind::Stop) {
        return Decision::last(Outcome::Interrupted { signal, ends: ends() });
    }
    let panicked = |rank| ranks.iter().any(|(_, one)| one.other.end.rank == rank && one.panicked);
    let preempted = stop_request(InterruptKind::Preempt);
    let Some(index) = root_cause(ranks.iter().map(|(_, rank)| &rank.other.end), panicked) else {
        let signal = preempted.unwrap_or_default();
        return Decision::last(match () {
            () if ends().iter().all(|end| end.reason.is_success()) => Outcome::Done,
            () if ends().iter().all(left_in_order) => Outcome::Preempted { signal, ends: ends() },
            () => Outcome::Interrupted { signal, ends: ends() },
        });
    };
    let (at, root) = ranks[index];
    let report = &reports[at];
    let detail = report.root.clone().unwrap_or_default();
    let others =
        ranks.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, (_, rank))| rank.other.clone());
    let failure = RankFailure {
        root: root.other.end,
        node: report.node,
        host: report.host.clone(),
        nnodes,
        restarts,
        panic: detail.panic,
        last_lines: detail.last_lines,
        last_heartbeat: root.other.last_heartbeat.clone(),
        log: detail.log,
        stopped: reports.iter().flat_map(|report| report.stopped.iter().copied()).collect(),
        others: others.collect(),
    };
    let may_restart = preempted.is_none()
        && !reports.iter().any(|report| report.signalled)
        && !matches!(failure.root.reason, ExitReason::Code(code) if never_restarts(code))
        && !ends().iter().any(|end| end.reason == ExitReason::Unkillable);
    Decision { outcome: Outcome::Failed(failure), may_restart }
}

/// The outcome for a node that knows only of its own ranks, as it has lost the others. Where its ranks were done
/// or had left in order by themselves, so had those of the others: a world ends together.
fn decide_without_others(report: NodeReport, lost: LostNode, hosts: &[String], restarts: u32) -> Decision {
    let by_itself =
        report.ranks.iter().all(|rank| !rank.other.end.stopped_by_launcher && left_in_order(&rank.other.end));
    if by_itself || report.stop_request.as_ref().is_some_and(|request| request.kind == InterruptKind::Stop) {
        return decide_with_all(vec![report], restarts);
    }
    let stuck = report.ranks.iter().any(|rank| rank.other.end.reason == ExitReason::Unkillable);
    let may_restart = report.stop_request.is_none() && !report.signalled && !stuck;
    let outcome = Outcome::NodeLost(NodeFailure {
        node: lost.node,
        host: lost.node.and_then(|node| hosts.get(node).cloned()),
        reason: lost.reason,
        after: lost.after,
        restarts,
        others: report.ranks.into_iter().map(|rank| rank.other).collect(),
    });
    Decision { outcome, may_restart }
}

fn left_in_order(end: &RankExit) -> bool {
    end.reason.is_success() || end.reason.is_preempted()
}

/// Wrong usage stays wrong, and who interrupts or preempts a rank does not want it back.
fn never_restarts(code: i32) -> bool {
    [exit::USAGE, exit::PREEMPTED, exit::INTERRUPTED].map(i32::from).contains(&code)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(
        node: usize,
        stop_request: Option<StopRequest>,
        ends: &[(usize, i32, u64, bool)],
    ) -> NodeReport {
        let rank = |&(rank, code, millis, stopped_by_launcher): &(usize, i32, u64, bool)| {
            let after = Duration::from_millis(millis);
            let end = RankExit { rank, reason: ExitReason::Code(code), after, stopped_by_launcher };
            RankReport { other: OtherRank { end, said: None, last_heartbeat: None }, panicked: false }
        };
        let detail = RootCause {
            rank: ends[0].0,
            last_lines: vec![format!("of node {node}")],
            ..RootCause::default()
        };
        let ranks = ends.iter().map(rank).collect();
        NodeReport {
            node,
            host: format!("h{node}"),
            stop_request,
            signalled: false,
            ranks,
            root: Some(detail),
            stopped: vec![],
        }
    }

    fn stop_request(kind: InterruptKind) -> Option<StopRequest> {
        Some(StopRequest { kind, by: "a signal".into() })
    }

    #[test]
    fn the_first_failure_of_all_nodes_is_the_worlds() {
        let reports = vec![report(0, None, &[(0, 1, 1200, false)]), report(1, None, &[(1, 3, 1100, false)])];
        let Decision { outcome: Outcome::Failed(failure), may_restart } = decide_with_all(reports, 2) else {
            panic!()
        };
        assert!(may_restart);
        assert_eq!((failure.root.rank, failure.node, failure.host.as_str()), (1, 1, "h1"));
        assert_eq!((failure.last_lines[0].as_str(), failure.others[0].end.rank), ("of node 1", 0));
        assert!(failure.to_string().contains("on node 1 (h1) (after 2 restarts)"), "{failure}");
    }

    #[test]
    fn only_what_may_go_better_is_started_again() {
        for (code, again) in [(1, true), (3, true), (101, true), (2, false), (130, false)] {
            assert_eq!(
                decide_with_all(vec![report(0, None, &[(0, code, 1, false)])], 0).may_restart,
                again,
                "{code}"
            );
        }
        let decision =
            decide_with_all(vec![report(0, stop_request(InterruptKind::Preempt), &[(0, 1, 1, false)])], 0);
        assert!(!decision.may_restart && decision.outcome.exit_code() == 1);
        let signalled = NodeReport { signalled: true, ..report(0, None, &[(0, 1, 1, false)]) };
        assert!(
            !decide_with_all(vec![signalled], 0).may_restart,
            "whoever presses Ctrl-C late means it, too"
        );
    }

    #[test]
    fn preempted_is_who_left_in_order_everywhere() {
        let code = |stop_request, ends: &[(usize, i32, u64, bool)]| {
            let done = report(1, None, &[(9, 0, 1, false)]);
            decide_with_all(vec![report(0, stop_request, ends), done], 0).outcome.exit_code()
        };
        assert_eq!(code(stop_request(InterruptKind::Preempt), &[(0, 75, 1, false), (1, 75, 1, false)]), 75);
        assert_eq!(code(stop_request(InterruptKind::Preempt), &[(0, 0, 1, false)]), 0);
        assert_eq!(code(stop_request(InterruptKind::Preempt), &[(0, 75, 1, false), (1, 143, 1, true)]), 130);
        assert_eq!(code(stop_request(InterruptKind::Stop), &[(0, 75, 1, false)]), 130);
    }

    #[test]
    fn a_lost_node_counts_only_while_ranks_ran() {
        let lost = || LostNode { node: Some(1), reason: "gone".into(), after: Some(Duration::from_secs(1)) };
        let hosts = ["h0".to_owned(), "h1".to_owned()];
        let decision = |report| decide_without_others(report, lost(), &hosts, 0);
        assert_eq!(decision(report(0, None, &[(0, 0, 1, false)])).outcome, Outcome::Done);
        let failed = decision(report(0, None, &[(0, 1, 1, false)]));
        assert!(failed.may_restart);
        assert!(failed.outcome.to_string().starts_with("node 1 (h1) is lost after 1.0 s: gone"));
    }
}
