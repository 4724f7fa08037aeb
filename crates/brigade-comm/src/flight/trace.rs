//! Follows who waits for whom to where it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::standing::{Queue, Standing, Wait};
use crate::error::{Suspect, Verdict};

/// How many ranks a verdict names, and of how many it says what they wait for.
const MAX_NAMED: usize = 8;

/// An end of the waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause<'a> {
    /// The rank says nothing.
    Silent { rank: usize, wait: &'a Wait },
    /// The rank is in no operation and has not called the one that is waited for.
    Missed { rank: usize, waiter: usize, wait: &'a Wait },
    /// The rank has done its part, but the waiter has not got it.
    Undelivered { rank: usize, waiter: usize, wait: &'a Wait },
}

/// Follows the waits from some of them. Ranks that are not among `standings` say nothing.
pub(super) fn follow<'a>(
    standings: &'a BTreeMap<usize, Standing>,
    from: impl IntoIterator<Item = (usize, &'a Wait)>,
) -> Vec<Cause<'a>> {
    let mut open: Vec<_> = from.into_iter().collect();
    let mut seen = BTreeSet::new();
    let (mut causes, mut undelivered) = (Vec::new(), Vec::new());
    while let Some((waiter, wait)) = open.pop() {
        if !seen.insert((waiter, wait.queue, wait.sequence)) {
            continue;
        }
        // One that waits for earlier ones of its queue waits for what the first of them waits for.
        let first = standings.get(&waiter).and_then(|standing| standing.first(wait.queue)).unwrap_or(wait);
        for rank in first.on().filter(|rank| *rank != waiter) {
            let Some(standing) = standings.get(&rank) else {
                causes.push(Cause::Silent { rank, wait: first });
                continue;
            };
            let queue = first.queue.counterpart(waiter);
            if let Some(theirs) = standing.first(queue) {
                open.push((rank, theirs));
            } else if standing.has_called(queue, first.sequence) {
                undelivered.push(Cause::Undelivered { rank, waiter, wait: first });
            } else if standing.awaited().next().is_none() {
                causes.push(Cause::Missed { rank, waiter, wait: first });
            } else {
                open.extend(standing.awaited().map(|theirs| (rank, theirs)));
            }
        }
    }
    if causes.is_empty() {
        causes = undelivered;
    }
    let mut named = BTreeSet::new();
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

/// Finds who holds up `asker`. A rank that does not answer is the cause whatever else there is; `heard` says how long
/// ago each of those was last heard of.
pub(crate) fn investigate(
    standings: &BTreeMap<usize, Standing>,
    asker: usize,
    heard: &[(usize, Duration)],
) -> Verdict {
    let own = standings.get(&asker).into_iter().flat_map(|standing| &standing.waits);
    let mut from: Vec<&Wait> = own.clone().filter(|wait| wait.waiting.overdue).collect();
    if from.is_empty() {
        from = own.filter(|wait| wait.waiting.awaited).collect();
    }
    let mut root: Vec<Suspect> =
        heard.iter().map(|(rank, ago)| Suspect { rank: *rank, why: unanswered(*ago) }).collect();
    if root.is_empty() {
        let causes = follow(standings, from.into_iter().map(|wait| (asker, wait)));
        root = causes.iter().map(|cause| suspect(cause, standings)).collect();
    }
    root.truncate(MAX_NAMED);
    let named: BTreeSet<usize> = root.iter().map(|suspect| suspect.rank).chain([asker]).collect();
    let waiting = standings.iter().filter(|(rank, _)| !named.contains(rank));
    let others = waiting.filter_map(|(rank, standing)| {
        let wait = standing.awaited().next()?;
        Some(format!("rank {rank} has waited for {} s in {}", seconds(wait.since), wait.what))
    });
    Verdict { root, others: others.take(MAX_NAMED).collect() }
}

/// The verdict where rank 0, which would have asked the others, was last heard of so long ago.
pub(crate) fn silent(rank: usize, ago: Duration) -> Verdict {
    Verdict { root: vec![Suspect { rank, why: unanswered(ago) }], others: Vec::new() }
}

fn unanswered(ago: Duration) -> String {
    let ago = seconds(ago.as_micros() as u64);
    format!("does not answer: its process is stopped or its host is gone (last sign of life {ago} s ago)")
}

fn suspect(cause: &Cause<'_>, standings: &BTreeMap<usize, Standing>) -> Suspect {
    let rank = cause.rank();
    let why = match cause {
        Cause::Silent { wait, .. } => format!("does not answer, but {} waits for it", wait.what),
        Cause::Missed { wait, .. } => {
            let last = standings.get(&rank).and_then(|standing| standing.last.as_ref());
            let idle = match last {
                Some((last, ago)) => format!("since {last} ended {} s ago", seconds(*ago)),
                None => "and has completed none".into(),
            };
            format!("never called its part of {}: it is in no operation, {idle}", wait.what)
        }
        Cause::Undelivered { waiter, wait, .. } => {
            format!("did its part of {}, but nothing of it reaches rank {waiter}", wait.what)
        }
    };
    Suspect { rank, why }
}

/// Microseconds as seconds, for the eye.
pub(super) fn seconds(micros: u64) -> String {
    format!("{:.1}", micros as f64 / 1e6)
}

impl Standing {
    /// The first operation of a queue that is in flight.
    pub(super) fn first(&self, queue: Queue) -> Option<&Wait> {
        self.waits.iter().filter(|wait| wait.queue == queue).min_by_key(|wait| wait.sequence)
    }

    /// What the rank's threads wait for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|wait| wait.waiting.awaited)
    }
}
