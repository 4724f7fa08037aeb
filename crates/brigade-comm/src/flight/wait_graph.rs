//! Follows the waits between ranks to their causes.

use std::time::Duration;

use brigade_sorted::{SortedMap, SortedSet};

use super::rank_status::{Queue, RankStatus, Wait};
use crate::error::{Diagnosis, StalledRank};

/// How many stalled ranks, and how many waits of other ranks, a diagnosis lists at most.
const MAX_NAMED: usize = 8;

/// Why ranks wait: an end of the wait graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause<'a> {
    /// The rank has not reported its status.
    Silent { rank: usize, wait: &'a Wait },
    /// The rank is in no operation, and has not called the one that others wait for.
    Missed { rank: usize, waiter: usize, wait: &'a Wait },
    /// The rank has done its part, but the data has not reached the waiter.
    Undelivered { rank: usize, waiter: usize, wait: &'a Wait },
}

/// Follows the waits, starting `from` some of them. Ranks without an entry in `statuses` have not reported.
pub(super) fn follow<'a>(
    statuses: &'a SortedMap<usize, RankStatus>,
    from: impl IntoIterator<Item = (usize, &'a Wait)>,
) -> Vec<Cause<'a>> {
    let mut open: Vec<_> = from.into_iter().collect();
    let mut seen = SortedSet::new();
    let (mut causes, mut undelivered) = (Vec::new(), Vec::new());
    while let Some((waiter, wait)) = open.pop() {
        if !seen.insert((waiter, wait.queue, wait.sequence)) {
            continue;
        }
        // An operation behind others in its queue waits for what the first of them waits for.
        let first = statuses.get(&waiter).and_then(|status| status.first(wait.queue)).unwrap_or(wait);
        for rank in first.on().filter(|rank| *rank != waiter) {
            let Some(status) = statuses.get(&rank) else {
                causes.push(Cause::Silent { rank, wait: first });
                continue;
            };
            let queue = first.queue.counterpart(waiter);
            if let Some(theirs) = status.first(queue) {
                open.push((rank, theirs));
            } else if status.has_called(queue, first.sequence) {
                undelivered.push(Cause::Undelivered { rank, waiter, wait: first });
            } else if status.awaited().next().is_none() {
                causes.push(Cause::Missed { rank, waiter, wait: first });
            } else {
                open.extend(status.awaited().map(|theirs| (rank, theirs)));
            }
        }
    }
    if causes.is_empty() {
        causes = undelivered;
    }
    let mut named = SortedSet::new();
    causes.retain(|cause| named.insert(cause.rank()));
    causes.sort_by_key(Cause::rank);
    causes
}

impl Cause<'_> {
    pub(super) fn rank(&self) -> usize {
        match self {
            Cause::Silent { rank, .. } | Cause::Missed { rank, .. } | Cause::Undelivered { rank, .. } => {
                *rank
            }
        }
    }
}

/// Finds the ranks that hold up `asker`. A rank that does not answer is always the cause; `silent` lists those, with the time
/// since their last message.
pub(crate) fn diagnose_stall(
    statuses: &SortedMap<usize, RankStatus>,
    asker: usize,
    silent: &[(usize, Duration)],
) -> Diagnosis {
    let own = statuses.get(&asker).into_iter().flat_map(|status| &status.waits);
    let mut from: Vec<&Wait> = own.clone().filter(|wait| wait.waiting.overdue).collect();
    if from.is_empty() {
        from = own.filter(|wait| wait.waiting.awaited).collect();
    }
    let mut root: Vec<StalledRank> =
        silent.iter().map(|(rank, ago)| StalledRank { rank: *rank, why: unanswered(*ago) }).collect();
    if root.is_empty() {
        let causes = follow(statuses, from.into_iter().map(|wait| (asker, wait)));
        root = causes.iter().map(|cause| stalled_rank(cause, statuses)).collect();
    }
    root.truncate(MAX_NAMED);
    let named: SortedSet<usize> = root.iter().map(|stalled| stalled.rank).chain([asker]).collect();
    let waiting = statuses.iter().filter(|(rank, _)| !named.contains(rank));
    let others = waiting.filter_map(|(rank, status)| {
        let wait = status.awaited().next()?;
        Some(format!("rank {rank} has waited for {} s in {}", seconds(wait.since), wait.what))
    });
    Diagnosis { root, others: others.take(MAX_NAMED).collect() }
}

/// The diagnosis if a rank's last message is so long ago: rank 0's, which should have asked the others.
pub(crate) fn unresponsive(rank: usize, ago: Duration) -> Diagnosis {
    Diagnosis { root: vec![StalledRank { rank, why: unanswered(ago) }], others: Vec::new() }
}

fn unanswered(ago: Duration) -> String {
    let ago = seconds(ago.as_micros() as u64);
    format!("does not answer: its process is stopped or its host is gone (last sign of life {ago} s ago)")
}

fn stalled_rank(cause: &Cause<'_>, statuses: &SortedMap<usize, RankStatus>) -> StalledRank {
    let rank = cause.rank();
    let why = match cause {
        Cause::Silent { wait, .. } => format!("does not answer, but {} waits for it", wait.what),
        Cause::Missed { wait, .. } => {
            let last = statuses.get(&rank).and_then(|status| status.last.as_ref());
            let idle = match last {
                Some((last, ago)) => format!("since {last} ended {} s ago", seconds(*ago)),
                None => "and has completed none".into(),
            };
            format!("never called its part of {}: it is in no operation, {idle}", wait.what)
        }
        Cause::Undelivered { waiter, wait, .. } => {
            format!("did its part of {}, but none of it reaches rank {waiter}", wait.what)
        }
    };
    StalledRank { rank, why }
}

/// Formats microseconds as seconds.
pub(super) fn seconds(micros: u64) -> String {
    format!("{:.1}", micros as f64 / 1e6)
}

impl RankStatus {
    /// The first operation of a queue that is in flight.
    pub(super) fn first(&self, queue: Queue) -> Option<&Wait> {
        self.waits.iter().filter(|wait| wait.queue == queue).min_by_key(|wait| wait.sequence)
    }

    /// The operations that the rank's threads are waiting for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|wait| wait.waiting.awaited)
    }
}
