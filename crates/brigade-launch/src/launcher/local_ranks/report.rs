//! What a node reports about its ranks.

use super::supervisor::Supervisor;
use crate::launcher::outcome::{
    decision::root_cause,
    failure::OtherRank,
    rank_exit::RankExit,
    report::{NodeReport, RankReport, RootCause},
};

impl Supervisor<'_> {
    /// What this node knows once its ranks have exited.
    pub(super) fn report(&self) -> NodeReport {
        let process = |rank: usize| self.group.ranks.iter().find(|process| process.rank == rank);
        let excerpt = |rank| process(rank).map(|process| process.log.excerpt()).unwrap_or_default();
        let panicked = |rank| !excerpt(rank).0.is_empty();
        let rank_report = |exit: &RankExit| {
            let found = process(exit.rank);
            let last_heartbeat = found.and_then(|process| process.heartbeat.last_message()).map(Into::into);
            let error_line = found.and_then(|process| process.log.error_line(exit.reason));
            let rank = OtherRank { exit: *exit, error_line, last_heartbeat };
            RankReport { rank, panicked: panicked(exit.rank) }
        };
        let mut exits = self.exits.clone();
        exits.sort_by_key(|exit| (exit.after, exit.rank));
        let root_cause = root_cause(exits.iter(), panicked).map(|index| {
            let rank = exits[index].rank;
            let (panic, last_lines) = excerpt(rank);
            let log = process(rank).map(|process| process.log.path().to_owned()).unwrap_or_default();
            RootCause { rank, panic, last_lines, log }
        });
        NodeReport {
            node: self.group.numbers.get(self.group.launch.node_rank).copied().unwrap_or_default(),
            host: self.group.host.to_owned(),
            stop_request: self.stop_request.clone(),
            signalled: self.signalled,
            ranks: exits.iter().map(rank_report).collect(),
            root_cause,
            stopped_ranks: self.stopped_ranks.clone(),
        }
    }
}
