//! What ranks waited for, and for whom.

use std::collections::BTreeMap;

use brigade_report::timeline::TraceEvent;

use super::work::{RankWork, Work, key};

/// The idle time of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleTime {
    /// The rank.
    pub rank: usize,
    /// Its stage of the pipeline.
    pub stage: usize,
    /// The share of its time in which it waited.
    pub share: f64,
    /// The share in which it neither worked nor waited: hooks, and other processes on its core.
    pub other: f64,
    /// What it waited for, the longest first; their shares add up to `share`.
    pub causes: Vec<IdleCause>,
}

/// What a rank waited for.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleCause {
    /// What.
    pub reason: Reason,
    /// The share of the rank's time.
    pub share: f64,
}

/// What a rank may wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its data.
    Data,
    /// A message of a rank of another stage.
    Stage {
        /// The rank.
        rank: usize,
    },
    /// A rank that came last to a collective.
    LastRank {
        /// The rank.
        rank: usize,
        /// The collective.
        what: String,
    },
    /// A collective that all had come to, or messages on their way.
    Communication {
        /// The collective.
        what: String,
    },
}

/// The idle time of each rank.
pub(super) fn of_ranks(work: &Work<'_>) -> Vec<IdleTime> {
    work.ranks.iter().enumerate().map(|(rank, of)| of_rank(work, rank, of)).collect()
}

fn of_rank(work: &Work<'_>, rank: usize, of: &RankWork<'_>) -> IdleTime {
    let mut causes = BTreeMap::<Reason, f64>::new();
    let mut waited = 0.0;
    for wait in &of.waits {
        let seconds = (wait.end() - wait.ts) / 1e6;
        waited += seconds;
        for (reason, part) in reasons(work, rank, of, wait) {
            *causes.entry(reason).or_default() += part * seconds;
        }
    }
    let share = |seconds: f64| if of.seconds > 0.0 { seconds / of.seconds } else { 0.0 };
    let mut causes: Vec<IdleCause> =
        causes.into_iter().map(|(reason, seconds)| IdleCause { reason, share: share(seconds) }).collect();
    causes.sort_by(|a, b| b.share.total_cmp(&a.share));
    let other = share((of.seconds - of.busy - waited).max(0.0));
    IdleTime { rank, stage: work.stage(rank), share: share(waited), other, causes }
}

/// What a wait was for, in parts.
fn reasons(work: &Work<'_>, rank: usize, of: &RankWork<'_>, wait: &TraceEvent) -> Vec<(Reason, f64)> {
    let what = wait.name.clone();
    if what == "data" {
        return vec![(Reason::Data, 1.0)];
    }
    if let Some(stage) = wait.number("stage") {
        return vec![(Reason::Stage { rank: work.rank_of_stage(rank, stage) }, 1.0)];
    }
    let whole = (wait.end() - wait.ts).max(1e-3);
    let late = awaited(of, wait).and_then(|operation| work.last_callers.get(&key(operation)?));
    match late.filter(|(last, called)| *last != rank && *called > wait.ts) {
        Some((last, called)) => {
            let late = ((called - wait.ts) / whole).min(1.0);
            let last = Reason::LastRank { rank: *last, what: what.clone() };
            vec![(last, late), (Reason::Communication { what }, 1.0 - late)]
        }
        None => vec![(Reason::Communication { what }, 1.0)],
    }
}

/// The collective whose end ended a wait: of those of the same name that were under way, the last one that ended by then.
fn awaited<'a>(of: &RankWork<'a>, wait: &TraceEvent) -> Option<&'a TraceEvent> {
    // Gathers of numbers are gathers; a rank notices an end a little later, and the clock has whole microseconds.
    let name = wait.name.strip_suffix("_scalars").unwrap_or(&wait.name);
    let slack = 2.0;
    let after = of.collectives.partition_point(|operation| operation.ts <= wait.end());
    let candidates = of.collectives[..after].iter().rev().take(64).copied();
    candidates
        .filter(|operation| operation.name == name)
        .filter(|operation| operation.end() >= wait.ts - slack && operation.end() <= wait.end() + slack)
        .max_by(|a, b| a.end().total_cmp(&b.end()))
}
