//! The outcome that follows from what all nodes report, and whether a restart may help.

use super::{
    Outcome,
    failure::{NodeFailure, RankFailure},
    rank_exit::{ExitReason, RankExit},
    report::{LostNode, NodeReport, RankReport, StopOrigin},
};
use crate::{exit, interrupt::InterruptKind};

/// How one start of the ranks ended.
pub struct Decision {
    pub outcome: Outcome,
    /// Whether starting the ranks again can help.
    pub may_restart: bool,
    /// Whether they ended to be started again with other nodes.
    pub resizes: bool,
}

impl Decision {
    fn is_final(outcome: Outcome) -> Self {
        Self { outcome, may_restart: false, resizes: false }
    }
}

/// The outcome once all nodes have reported, after `restarts` restarts. All nodes have the same reports and come to the same
/// decision.
pub fn decide(reports: Vec<NodeReport>, restarts: u32) -> Decision {
    let nnodes = reports.len();
    let mut ranks: Vec<(usize, &RankReport)> = Vec::new();
    for (at, report) in reports.iter().enumerate() {
        ranks.extend(report.ranks.iter().map(|rank| (at, rank)));
    }
    ranks.sort_by_key(|(_, report)| (report.rank.exit.after, report.rank.exit.rank));
    let exits = || ranks.iter().map(|(_, report)| report.rank.exit).collect::<Vec<RankExit>>();
    let requested = |kind| {
        let requests = reports.iter().filter_map(|report| report.stop_request.as_ref());
        let mut of_kind: Vec<_> = requests.filter(|request| request.kind == kind).collect();
        of_kind.retain(|request| request.origin != StopOrigin::WaitingNode);
        // Ranks exit because of a signal to the launcher of another node, and theirs may hear of it later.
        let signal = of_kind.iter().find(|request| request.origin == StopOrigin::Signal);
        signal.or(of_kind.first()).map(|request| request.source.clone())
    };
    let of = |origin| {
        let mut requests = reports.iter().filter_map(|report| report.stop_request.as_ref());
        requests.find(|request| request.origin == origin)
    };
    // Where ranks exit because those of another node save for a waiting node, their launcher may hear of it later.
    let waiting_node = of(StopOrigin::WaitingNode).filter(|_| of(StopOrigin::Signal).is_none());
    if let Some(signal) = requested(InterruptKind::Stop) {
        return Decision::is_final(Outcome::Interrupted { signal, exits: exits() });
    }
    let panicked = |rank| ranks.iter().any(|(_, report)| report.rank.exit.rank == rank && report.panicked);
    let preempted = requested(InterruptKind::Preempt).filter(|_| waiting_node.is_none());
    let Some(index) = root_cause(ranks.iter().map(|(_, report)| &report.rank.exit), panicked) else {
        let is_done = exits().iter().all(|exit| exit.reason.is_success());
        if let Some(request) = waiting_node.filter(|_| !is_done) {
            let outcome = Outcome::Preempted { signal: request.source.clone(), exits: exits() };
            return Decision { outcome, may_restart: false, resizes: true };
        }
        let signal = preempted.unwrap_or_default();
        // The launcher's signal may reach ranks that have saved, too, just before they exit.
        let saved = of(StopOrigin::Rank).is_some() && of(StopOrigin::Signal).is_none();
        let is_in_order = |exit: &RankExit| exit.is_clean() || (saved && exit.stopped_by_launcher);
        return Decision::is_final(match () {
            () if is_done => Outcome::Done,
            () if exits().iter().all(is_in_order) => Outcome::Preempted { signal, exits: exits() },
            () => Outcome::Interrupted { signal, exits: exits() },
        });
    };
    let (at, root) = ranks[index];
    let report = &reports[at];
    let detail = report.root_cause.clone().unwrap_or_default();
    let others =
        ranks.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, (_, report))| report.rank.clone());
    let failure = RankFailure {
        root_cause: root.rank.exit,
        node: report.node,
        host: report.host.clone(),
        nnodes,
        restarts,
        panic: detail.panic,
        last_lines: detail.last_lines,
        last_heartbeat: root.rank.last_heartbeat.clone(),
        log: detail.log,
        stopped_ranks: reports.iter().flat_map(|report| report.stopped_ranks.iter().copied()).collect(),
        others: others.collect(),
    };
    let may_restart = preempted.is_none()
        && !reports.iter().any(|report| report.signalled)
        && !matches!(failure.root_cause.reason, ExitReason::Code(code) if forbids_restart(code))
        && !exits().iter().any(|exit| exit.reason == ExitReason::Unkillable);
    Decision { outcome: Outcome::Failed(failure), may_restart, resizes: false }
}

/// The outcome for a node that knows only its own ranks, because it has lost the others. If its ranks exited cleanly
/// by themselves, so did those of the others: all ranks finish together. `nodes`: number and host of each.
pub fn decide_without_others(
    report: NodeReport,
    lost: LostNode,
    nodes: &[(usize, String)],
    restarts: u32,
) -> Decision {
    let by_themselves = report
        .ranks
        .iter()
        .all(|report| !report.rank.exit.stopped_by_launcher && report.rank.exit.is_clean());
    let request = report.stop_request.as_ref();
    if by_themselves || request.is_some_and(|request| request.kind == InterruptKind::Stop) {
        return decide(vec![report], restarts);
    }
    let unkillable = report.ranks.iter().any(|report| report.rank.exit.reason == ExitReason::Unkillable);
    let is_preempted = request.is_some_and(|request| request.origin != StopOrigin::WaitingNode);
    let may_restart = !is_preempted && !report.signalled && !unkillable;
    let others = report.ranks.into_iter().map(|report| report.rank).collect();
    let outcome = Outcome::NodeLost(NodeFailure {
        others,
        start_again: is_preempted,
        ..NodeFailure::new(lost, nodes, restarts)
    });
    Decision { outcome, may_restart, resizes: false }
}

/// The failed rank that is the root cause, as an index into `exits`, which are in order of time.
///
/// Only ranks that failed by themselves count. One that was killed, panicked, sent no heartbeat, or says with its exit
/// code what happened (2: wrong usage, 130: interrupted) goes before one that exited with another error.
pub fn root_cause<'a>(
    exits: impl Iterator<Item = &'a RankExit>,
    panicked: impl Fn(usize) -> bool,
) -> Option<usize> {
    const RUST_PANIC: i32 = 101;
    let is_specific = |exit: &RankExit| match exit.reason {
        ExitReason::Signal(_) | ExitReason::HeartbeatTimeout(_) => true,
        ExitReason::Code(code) => matches!(code, 2 | 130 | RUST_PANIC) || panicked(exit.rank),
        ExitReason::Unkillable => false,
    };
    let failures = exits.enumerate().filter(|(_, exit)| !exit.stopped_by_launcher && !exit.is_clean());
    failures.min_by_key(|(_, exit)| !is_specific(exit)).map(|(index, _)| index)
}

/// Wrong usage stays wrong, and whoever interrupts or preempts a rank does not want it back.
fn forbids_restart(code: i32) -> bool {
    [exit::USAGE, exit::PREEMPTED, exit::INTERRUPTED].map(i32::from).contains(&code)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::launcher::outcome::{
        failure::OtherRank,
        report::{RootCause, StopRequest},
    };

    fn exit(rank: usize, reason: ExitReason, stopped_by_launcher: bool) -> RankExit {
        RankExit { rank, reason, after: Duration::from_millis(1500), stopped_by_launcher }
    }

    #[test]
    fn the_root_cause_goes_before_what_it_caused() {
        let (one, kill) = (ExitReason::Code(1), ExitReason::Signal(9));
        let root = |exits: &[RankExit]| root_cause(exits.iter(), |rank| rank == 7).map(|i| exits[i].rank);
        assert_eq!(root(&[exit(3, one, false), exit(1, one, false)]), Some(3));
        assert_eq!(root(&[exit(3, one, false), exit(1, kill, false)]), Some(1));
        assert_eq!(root(&[exit(3, one, false), exit(1, kill, true)]), Some(3));
        assert_eq!(root(&[exit(3, one, false), exit(7, one, false)]), Some(7));
        let silent = ExitReason::HeartbeatTimeout(Duration::ZERO);
        assert_eq!(root(&[exit(3, one, false), exit(5, silent, false)]), Some(5));
        let panicked = ExitReason::Code(101);
        assert_eq!(root(&[exit(3, one, false), exit(1, panicked, false), exit(2, kill, false)]), Some(1));
        assert_eq!(root(&[exit(0, ExitReason::Code(0), false), exit(1, kill, true)]), None);
        assert_eq!(root(&[exit(0, ExitReason::Code(75), false)]), None);
    }

    fn report(
        node: usize,
        stop_request: Option<StopRequest>,
        exits: &[(usize, i32, u64, bool)],
    ) -> NodeReport {
        let rank = |&(rank, code, millis, stopped_by_launcher): &(usize, i32, u64, bool)| {
            let after = Duration::from_millis(millis);
            let exit = RankExit { rank, reason: ExitReason::Code(code), after, stopped_by_launcher };
            RankReport { rank: OtherRank { exit, error_line: None, last_heartbeat: None }, panicked: false }
        };
        let detail = RootCause {
            rank: exits[0].0,
            last_lines: vec![format!("of node {node}")],
            ..RootCause::default()
        };
        let ranks = exits.iter().map(rank).collect();
        NodeReport {
            node,
            host: format!("h{node}"),
            stop_request,
            signalled: false,
            ranks,
            root_cause: Some(detail),
            stopped_ranks: vec![],
        }
    }

    fn stop_request(kind: InterruptKind) -> Option<StopRequest> {
        Some(StopRequest { kind, source: "a signal".into(), origin: StopOrigin::Signal })
    }

    #[test]
    fn the_first_failure_of_all_nodes_is_the_root_cause() {
        let reports = vec![report(0, None, &[(0, 1, 1200, false)]), report(1, None, &[(1, 3, 1100, false)])];
        let Decision { outcome: Outcome::Failed(failure), may_restart, .. } = decide(reports, 2) else {
            panic!()
        };
        assert!(may_restart);
        assert_eq!((failure.root_cause.rank, failure.node, failure.host.as_str()), (1, 1, "h1"));
        assert_eq!((failure.last_lines[0].as_str(), failure.others[0].exit.rank), ("of node 1", 0));
        assert!(failure.to_string().contains("on node 1 (h1) (after 2 restarts)"), "{failure}");
    }

    #[test]
    fn only_what_a_restart_can_mend_is_restarted() {
        for (code, again) in [(1, true), (3, true), (101, true), (2, false), (130, false)] {
            assert_eq!(decide(vec![report(0, None, &[(0, code, 1, false)])], 0).may_restart, again, "{code}");
        }
        let decision = decide(vec![report(0, stop_request(InterruptKind::Preempt), &[(0, 1, 1, false)])], 0);
        assert!(!decision.may_restart && decision.outcome.exit_code() == 1);
        let signalled = NodeReport { signalled: true, ..report(0, None, &[(0, 1, 1, false)]) };
        assert!(!decide(vec![signalled], 0).may_restart, "whoever presses Ctrl-C late means it, too");
    }

    #[test]
    fn preempted_is_who_left_in_order_everywhere() {
        let code = |stop_request, exits: &[(usize, i32, u64, bool)]| {
            let done = report(1, None, &[(9, 0, 1, false)]);
            decide(vec![report(0, stop_request, exits), done], 0).outcome.exit_code()
        };
        assert_eq!(code(stop_request(InterruptKind::Preempt), &[(0, 75, 1, false), (1, 75, 1, false)]), 75);
        assert_eq!(code(stop_request(InterruptKind::Preempt), &[(0, 0, 1, false)]), 0);
        assert_eq!(code(stop_request(InterruptKind::Preempt), &[(0, 75, 1, false), (1, 143, 1, true)]), 130);
        assert_eq!(code(stop_request(InterruptKind::Stop), &[(0, 75, 1, false)]), 130);
    }

    #[test]
    fn who_is_ended_after_another_rank_saved_is_preempted_with_it() {
        let by_rank = || {
            let source = "rank 0, which exited with code 75".into();
            Some(StopRequest { kind: InterruptKind::Preempt, source, origin: StopOrigin::Rank })
        };
        let ended = [(0, 75, 1, false), (1, 143, 2, true)];
        let outcome = decide(vec![report(0, by_rank(), &ended)], 0).outcome;
        assert_eq!(outcome.exit_code(), 75);
        let said = "preempted by rank 0, which exited with code 75; the launcher ended the other ranks";
        assert_eq!(outcome.to_string(), said);
        let others = vec![report(0, by_rank(), &ended[..1]), report(1, by_rank(), &[(1, 143, 2, true)])];
        assert_eq!(decide(others, 0).outcome.exit_code(), 75);
        let failed = [(0, 75, 1, false), (1, 1, 2, false)];
        assert_eq!(decide(vec![report(0, by_rank(), &failed)], 0).outcome.exit_code(), 1);
        let stop = stop_request(InterruptKind::Stop);
        assert_eq!(decide(vec![report(0, stop, &ended)], 0).outcome.exit_code(), 130);
    }

    #[test]
    fn a_signal_comes_before_ranks_that_exit_because_of_it() {
        let by_itself = StopRequest {
            source: "rank 0, which exited with code 75".into(),
            origin: StopOrigin::Rank,
            ..stop_request(InterruptKind::Preempt).unwrap()
        };
        let first = report(0, Some(by_itself), &[(0, 75, 1, false)]);
        let second = report(1, stop_request(InterruptKind::Preempt), &[(1, 75, 1, false)]);
        let Outcome::Preempted { signal, .. } = decide(vec![first, second], 0).outcome else { panic!() };
        assert_eq!(signal, "a signal");
    }

    #[test]
    fn who_saved_for_another_node_starts_again_with_it() {
        let resize = || {
            let request = StopRequest {
                origin: StopOrigin::WaitingNode,
                ..stop_request(InterruptKind::Preempt).unwrap()
            };
            Some(request)
        };
        let of_rank = || {
            let request =
                StopRequest { origin: StopOrigin::Rank, ..stop_request(InterruptKind::Preempt).unwrap() };
            Some(request)
        };
        let decision = |first, second: &[(usize, i32, u64, bool)]| {
            decide(vec![report(0, first, &[(0, 75, 1, false)]), report(1, resize(), second)], 0)
        };
        let saved = [(1, 75, 1, false)];
        assert!(decision(resize(), &saved).resizes);
        assert!(decision(resize(), &[(1, 143, 1, true)]).resizes, "it need not know how to save");
        assert!(decision(of_rank(), &saved).resizes, "its launcher had not heard of it yet");
        let signalled = decision(stop_request(InterruptKind::Preempt), &saved);
        assert!(!signalled.resizes && signalled.outcome.exit_code() == 75, "a signal means the whole run");
        assert!(!decision(stop_request(InterruptKind::Stop), &saved).resizes);
        let failed = decision(resize(), &[(1, 1, 1, false)]);
        assert!(!failed.resizes && failed.may_restart);
        let done = decide(vec![report(0, resize(), &[(0, 0, 1, false)])], 0);
        assert_eq!((done.outcome, done.resizes), (Outcome::Done, false));
    }

    #[test]
    fn a_lost_node_counts_only_while_ranks_ran() {
        let lost = || LostNode { node: Some(1), reason: "gone".into(), after: Some(Duration::from_secs(1)) };
        let nodes = [(0, "h0".to_owned()), (1, "h1".to_owned())];
        let decision = |report| decide_without_others(report, lost(), &nodes, 0);
        assert_eq!(decision(report(0, None, &[(0, 0, 1, false)])).outcome, Outcome::Done);
        let failed = decision(report(0, None, &[(0, 1, 1, false)]));
        assert!(failed.may_restart);
        assert!(failed.outcome.to_string().starts_with("node 1 (h1) is lost after 1.0 s: gone"));
        assert_eq!(failed.outcome.exit_code(), 1);
        let saving = || stop_request(InterruptKind::Preempt);
        let lost_while_saving = decision(report(0, saving(), &[(0, 1, 1, true)]));
        assert!(!lost_while_saving.may_restart && lost_while_saving.outcome.exit_code() == 75);
        let saved = decision(report(0, saving(), &[(0, 75, 1, false)])).outcome;
        assert!(matches!(saved, Outcome::Preempted { .. }));
        let stopped = decision(report(0, stop_request(InterruptKind::Stop), &[(0, 130, 1, true)]));
        assert_eq!(stopped.outcome.exit_code(), 130);
    }
}
