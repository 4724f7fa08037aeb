//! What the records of a failed world, taken together, say.

use std::fmt;

use brigade_sorted::SortedMap;

use super::rank_status::{Queue, RankStatus, Wait};
use super::record::{Entry, FirstFailure, FlightRecord, State};
use super::wait_graph::{Cause, follow, seconds};
use crate::limits::MAX_WORLD_SIZE;
use crate::op::call::Call;

/// What went wrong, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureReport {
    /// The kind of fault.
    pub kind: FailureKind,
    /// The ranks whose fault it is.
    pub ranks: Vec<usize>,
    text: String,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// There are no records.
    NoRecords,
    /// Nothing failed.
    Nothing,
    /// A rank left no record: it was killed, or its host is gone.
    Gone,
    /// A rank called something other than the others did.
    Mismatch,
    /// A rank never called an operation that others are waiting in.
    Missed,
    /// A rank never sent what another waits for, or never received what another sends.
    Unmatched,
    /// A rank stopped, in the middle of an operation or elsewhere.
    Stopped,
    /// A rank did its part, but the data did not arrive.
    Undelivered,
    /// Ranks wait for each other.
    Circle,
    /// A rank failed by itself; the others waited for it.
    Failed,
}

impl fmt::Display for FailureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Finds out which rank missed which operation, from the records that there are. If they come from several starts of the
/// world, only those of the last one count.
pub fn diagnose(records: &[FlightRecord]) -> FailureReport {
    let restart = records.iter().map(|record| record.restart).max().unwrap_or(0);
    let last = records.iter().filter(|record| record.restart == restart);
    let records: SortedMap<usize, &FlightRecord> = last.map(|record| (record.rank, record)).collect();
    let Some(world_size) = records.values().map(|record| record.world_size).max() else {
        return report(FailureKind::NoRecords, [], "there are no flight records".into());
    };
    let ranks = 0..world_size.min(MAX_WORLD_SIZE);
    let world = WorldRecords {
        statuses: records.iter().map(|(rank, record)| (*rank, RankStatus::of(record))).collect(),
        missing: ranks.filter(|rank| !records.contains_key(rank)).collect(),
        records,
    };
    world
        .mismatch()
        .or_else(|| world.own_failure())
        .or_else(|| world.held_up())
        .unwrap_or_else(|| world.nothing())
}

/// The records of one world.
struct WorldRecords<'a> {
    records: SortedMap<usize, &'a FlightRecord>,
    statuses: SortedMap<usize, RankStatus>,
    /// The ranks that left no record.
    missing: Vec<usize>,
}

impl WorldRecords<'_> {
    /// Ranks that called different things at the same place of their order.
    fn mismatch(&self) -> Option<FailureReport> {
        let mut collectives: SortedMap<(u64, u64), Vec<(usize, &Entry)>> = SortedMap::new();
        let mut sends: SortedMap<(u64, usize, usize, u64), &Entry> = SortedMap::new();
        let mut receives = Vec::new();
        for (rank, record) in &self.records {
            for entry in &record.entries {
                let Some(group) = record.groups.get(entry.group) else { continue };
                let sequence = entry.call.sequence;
                match entry.peer {
                    None => {
                        let calls = collectives.entry((group.number, sequence)).or_default();
                        // Only one per rank: a file can contain anything.
                        if calls.last().is_none_or(|(known, _)| known != rank) {
                            calls.push((*rank, entry));
                        }
                    }
                    Some(peer) if entry.call.operation.is_receive() => {
                        receives.push(((group.number, peer, *rank, sequence), entry));
                    }
                    Some(peer) => {
                        sends.insert((group.number, *rank, peer, sequence), entry);
                    }
                }
            }
        }
        for calls in collectives.values() {
            let unfinished = calls.iter().any(|(_, entry)| entry.state != State::Done);
            let same = |call: &Call| -> Vec<usize> {
                calls.iter().filter(|(_, entry)| entry.call == *call).map(|(rank, _)| *rank).collect()
            };
            let (_, common) = calls.iter().max_by_key(|(_, entry)| same(&entry.call).len())?;
            let odd = calls.iter().find(|(_, entry)| entry.call != common.call);
            if let Some((rank, entry)) = odd.filter(|_| unfinished) {
                let (mut odd, others) = (same(&entry.call), same(&common.call));
                let (what, calls) = (self.describe(*rank, entry), ranks(others.iter().copied()));
                let text = format!(
                    "{} called {what} where {calls} called {}",
                    ranks(odd.iter().copied()),
                    common.call
                );
                if odd.len() == others.len() {
                    odd.extend(others);
                }
                return Some(report(FailureKind::Mismatch, odd, text));
            }
        }
        for (key, receive) in receives {
            let (_, from, to, _) = key;
            let Some(send) = sends.get(&key) else { continue };
            if receive.state != State::Done && !receive.call.accepts(&send.call) {
                let what = self.describe(to, receive);
                let text = format!("rank {to} called {what}, but rank {from} called {}", send.call);
                return Some(report(FailureKind::Mismatch, [to, from], text));
            }
        }
        None
    }

    /// A failure that is not a timeout.
    fn own_failure(&self) -> Option<FailureReport> {
        let FirstFailure { rank, root, text } = self.failure()?;
        let overdue = self.statuses.values().flat_map(|status| &status.waits);
        if !root.is_empty() || overdue.into_iter().any(|wait| wait.waiting.overdue) {
            return None;
        }
        let waiting = match self.cause(|cause| cause.rank() == *rank).map(|cause| self.waiters(&cause)) {
            Some((waiters, what)) => format!("; {waiters} waited for it in {what}"),
            None => String::new(),
        };
        if self.missing.contains(rank) {
            let text = format!("rank {rank} left no record: it was killed or its host is gone{waiting}");
            return Some(report(FailureKind::Gone, [*rank], text));
        }
        let text = text.lines().next().unwrap_or_default();
        Some(report(FailureKind::Failed, [*rank], format!("rank {rank} failed first: {text}{waiting}")))
    }

    /// The rank that held up the others until one of them timed out.
    fn held_up(&self) -> Option<FailureReport> {
        let failure = self.failure()?;
        let root: Vec<usize> = failure.root.iter().map(|stalled| stalled.rank).collect();
        let is_root = |rank: usize| root.is_empty() || root.contains(&rank);
        if let Some(cause) = self.cause(|cause| is_root(cause.rank())) {
            return Some(self.explain(&cause));
        }
        if let Some(stalled) = failure.root.first() {
            let text = format!("rank {} {}", stalled.rank, stalled.why);
            let gone = self.missing.contains(&stalled.rank);
            return Some(report(if gone { FailureKind::Gone } else { FailureKind::Stopped }, root, text));
        }
        let waits: Vec<_> = self
            .statuses
            .iter()
            .filter_map(|(rank, status)| Some((*rank, status.awaited().next()?)))
            .collect();
        let involved: Vec<usize> = waits.iter().map(|(rank, _)| *rank).collect();
        let each: Vec<_> = waits.iter().map(|(rank, wait)| format!("rank {rank} in {}", wait.what)).collect();
        let text = format!("{} wait for each other: {}", ranks(involved.iter().copied()), each.join(", "));
        (!waits.is_empty()).then(|| report(FailureKind::Circle, involved, text))
    }

    fn explain(&self, cause: &Cause<'_>) -> FailureReport {
        let rank = cause.rank();
        let (waiters, what) = self.waiters(cause);
        let last = match self.statuses.get(&rank).and_then(|status| status.last.as_ref()) {
            Some((last, ago)) => format!("its last one was {last}, {} s earlier", seconds(*ago)),
            None => "it has completed none".into(),
        };
        let (kind, text) = match cause {
            Cause::Silent { .. } => {
                let gone = "left no record: it was killed or its host is gone";
                (FailureKind::Gone, format!("rank {rank} {gone}; {waiters} waited for it in {what}"))
            }
            Cause::Missed { wait: Wait { queue: Queue::Receives(..), .. }, .. } => (
                FailureKind::Unmatched,
                format!("rank {rank} never sent what {waiters} waits for in {what}; {last}"),
            ),
            Cause::Missed { wait: Wait { queue: Queue::Sends(..), .. }, .. } => (
                FailureKind::Unmatched,
                format!("rank {rank} never received what {waiters} sends it in {what}; {last}"),
            ),
            Cause::Missed { .. } => (
                FailureKind::Missed,
                format!("rank {rank} never called {what}, which {waiters} wait in; {last}"),
            ),
            Cause::Undelivered { .. } if self.did_not_answer(rank) => (
                FailureKind::Stopped,
                format!("rank {rank} did not answer while {waiters} waited in {what}; {last}"),
            ),
            Cause::Undelivered { .. } => {
                (FailureKind::Undelivered, format!("what rank {rank} sent did not reach {waiters} in {what}"))
            }
        };
        report(kind, [rank], text)
    }

    fn nothing(&self) -> FailureReport {
        match &self.missing[..] {
            [] => {
                let s = if self.records.len() == 1 { "" } else { "s" };
                let text = format!("nothing failed in the records of {} rank{s}", self.records.len());
                report(FailureKind::Nothing, [], text)
            }
            missing => {
                let text = format!(
                    "{} left no record; nothing failed in the others",
                    ranks(missing.iter().copied())
                );
                report(FailureKind::Gone, missing.iter().copied(), text)
            }
        }
    }

    /// Whether the others timed out because of this rank.
    fn did_not_answer(&self, rank: usize) -> bool {
        self.failure().is_some_and(|failure| failure.root.iter().any(|stalled| stalled.rank == rank))
    }

    /// The first failure, as recorded by the rank where it happened if there is a record of it.
    fn failure(&self) -> Option<&FirstFailure> {
        let mut known =
            self.records.values().filter_map(|record| Some((record.rank, record.failure.as_ref()?)));
        let first_hand = known.clone().find(|(rank, failure)| *rank == failure.rank);
        first_hand.or_else(|| known.next()).map(|(_, failure)| failure)
    }

    /// A cause of the operations that timed out, or of all waits if none did.
    fn cause(&self, is_meant: impl Fn(&Cause<'_>) -> bool) -> Option<Cause<'_>> {
        let waits = || {
            let statuses = self.statuses.iter();
            statuses.flat_map(|(rank, status)| status.waits.iter().map(|wait| (*rank, wait)))
        };
        let overdue: Vec<_> = waits().filter(|(_, wait)| wait.waiting.overdue).collect();
        let from = if overdue.is_empty() { waits().collect() } else { overdue };
        follow(&self.statuses, from).into_iter().find(is_meant)
    }

    /// Which ranks wait because of this cause, and in which operation.
    fn waiters(&self, cause: &Cause<'_>) -> (String, String) {
        let (Cause::Silent { wait, .. } | Cause::Missed { wait, .. } | Cause::Undelivered { wait, .. }) =
            cause;
        let same = |status: &RankStatus| {
            status.waits.iter().any(|other| (other.queue, other.sequence) == (wait.queue, wait.sequence))
        };
        let waiters = self.statuses.iter().filter(|(_, status)| same(status)).map(|(rank, _)| *rank);
        (ranks(waiters), wait.what.clone())
    }

    fn describe(&self, rank: usize, entry: &Entry) -> String {
        self.records.get(&rank).map(|record| entry.describe(&record.groups)).unwrap_or_default()
    }
}

fn report(kind: FailureKind, ranks: impl IntoIterator<Item = usize>, text: String) -> FailureReport {
    FailureReport { kind, ranks: ranks.into_iter().collect(), text }
}

/// Formats a list of ranks.
fn ranks(ranks: impl Iterator<Item = usize>) -> String {
    let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    match &ranks[..] {
        [one] => format!("rank {one}"),
        several => format!("ranks {}", several.join(", ")),
    }
}
