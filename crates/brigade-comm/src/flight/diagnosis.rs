//! What the records of a failed world tell together.

use std::collections::BTreeMap;
use std::fmt;

use super::record::{Entry, FirstFailure, Record, State};
use super::standing::{Queue, Standing, Wait};
use super::trace::{Cause, follow, seconds};
use crate::call::Call;
use crate::join::MAX_WORLD_SIZE;

/// What went wrong, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    /// The kind of fault.
    pub finding: Finding,
    /// The ranks whose fault it is.
    pub ranks: Vec<usize>,
    text: String,
}

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// There are no records.
    NoRecords,
    /// Nothing failed.
    Nothing,
    /// A rank left no record: it was killed, or its host is gone.
    Gone,
    /// A rank called something else than the others.
    Mismatch,
    /// A rank never called an operation that others wait in.
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

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Says which rank missed which operation, from the records of as many ranks as have left one. Where records of several
/// starts of the world lie together, those of the last one count.
pub fn diagnose(records: &[Record]) -> Diagnosis {
    let restart = records.iter().map(|record| record.restart).max().unwrap_or(0);
    let last = records.iter().filter(|record| record.restart == restart);
    let records: BTreeMap<usize, &Record> = last.map(|record| (record.rank, record)).collect();
    let Some(world_size) = records.values().map(|record| record.world_size).max() else {
        return diagnosis(Finding::NoRecords, [], "there are no flight records".into());
    };
    let world = 0..world_size.min(MAX_WORLD_SIZE);
    let case = Case {
        standings: records.iter().map(|(rank, record)| (*rank, Standing::of(record))).collect(),
        missing: world.filter(|rank| !records.contains_key(rank)).collect(),
        records,
    };
    case.mismatch()
        .or_else(|| case.own_failure())
        .or_else(|| case.held_up())
        .unwrap_or_else(|| case.nothing())
}

/// The records of one world.
struct Case<'a> {
    records: BTreeMap<usize, &'a Record>,
    standings: BTreeMap<usize, Standing>,
    /// The ranks that left no record.
    missing: Vec<usize>,
}

impl Case<'_> {
    /// Ranks that called different things at the same place of their order.
    fn mismatch(&self) -> Option<Diagnosis> {
        let mut collectives: BTreeMap<(u64, u64), Vec<(usize, &Entry)>> = BTreeMap::new();
        let mut sends: BTreeMap<(u64, usize, usize, u64), &Entry> = BTreeMap::new();
        let mut receives = Vec::new();
        for (rank, record) in &self.records {
            for entry in &record.entries {
                let Some(group) = record.groups.get(entry.group) else { continue };
                let sequence = entry.call.sequence;
                match entry.peer {
                    None => {
                        let calls = collectives.entry((group.number, sequence)).or_default();
                        // One of each rank; a file may hold anything.
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
                return Some(diagnosis(Finding::Mismatch, odd, text));
            }
        }
        for (key, receive) in receives {
            let (_, from, to, _) = key;
            let Some(send) = sends.get(&key) else { continue };
            if receive.state != State::Done && !receive.call.accepts(&send.call) {
                let what = self.describe(to, receive);
                let text = format!("rank {to} called {what}, but rank {from} called {}", send.call);
                return Some(diagnosis(Finding::Mismatch, [to, from], text));
            }
        }
        None
    }

    /// A failure that is not the end of somebody's patience.
    fn own_failure(&self) -> Option<Diagnosis> {
        let FirstFailure { rank, root, text } = self.failure()?;
        let overdue = self.standings.values().flat_map(|standing| &standing.waits);
        if !root.is_empty() || overdue.into_iter().any(|wait| wait.waiting.overdue) {
            return None;
        }
        let waiting = match self.cause(|cause| cause.rank() == *rank).map(|cause| self.waiters(&cause)) {
            Some((waiters, what)) => format!("; {waiters} waited for it in {what}"),
            None => String::new(),
        };
        if self.missing.contains(rank) {
            let text = format!("rank {rank} left no record, it was killed or its host is gone{waiting}");
            return Some(diagnosis(Finding::Gone, [*rank], text));
        }
        let text = text.lines().next().unwrap_or_default();
        Some(diagnosis(Finding::Failed, [*rank], format!("rank {rank} failed first: {text}{waiting}")))
    }

    /// Who held up the others until one of them gave up.
    fn held_up(&self) -> Option<Diagnosis> {
        let failure = self.failure()?;
        let accused: Vec<usize> = failure.root.iter().map(|suspect| suspect.rank).collect();
        let is_accused = |rank: usize| accused.is_empty() || accused.contains(&rank);
        if let Some(cause) = self.cause(|cause| is_accused(cause.rank())) {
            return Some(self.convict(&cause));
        }
        if let Some(suspect) = failure.root.first() {
            let text = format!("rank {} {}", suspect.rank, suspect.why);
            let gone = self.missing.contains(&suspect.rank);
            return Some(diagnosis(if gone { Finding::Gone } else { Finding::Stopped }, accused, text));
        }
        let waits: Vec<_> = self
            .standings
            .iter()
            .filter_map(|(rank, standing)| Some((*rank, standing.awaited().next()?)))
            .collect();
        let involved: Vec<usize> = waits.iter().map(|(rank, _)| *rank).collect();
        let each: Vec<_> = waits.iter().map(|(rank, wait)| format!("rank {rank} in {}", wait.what)).collect();
        let text = format!("{} wait for each other: {}", ranks(involved.iter().copied()), each.join(", "));
        (!waits.is_empty()).then(|| diagnosis(Finding::Circle, involved, text))
    }

    fn convict(&self, cause: &Cause<'_>) -> Diagnosis {
        let rank = cause.rank();
        let (waiters, what) = self.waiters(cause);
        let last = match self.standings.get(&rank).and_then(|standing| standing.last.as_ref()) {
            Some((last, ago)) => format!("its last was {last}, {} s before", seconds(*ago)),
            None => "it has completed none".into(),
        };
        let (finding, text) = match cause {
            Cause::Silent { .. } => {
                let gone = "left no record, it was killed or its host is gone";
                (Finding::Gone, format!("rank {rank} {gone}; {waiters} waited for it in {what}"))
            }
            Cause::Missed { wait: Wait { queue: Queue::Receives(..), .. }, .. } => (
                Finding::Unmatched,
                format!("rank {rank} never sent what {waiters} waits for in {what}; {last}"),
            ),
            Cause::Missed { wait: Wait { queue: Queue::Sends(..), .. }, .. } => (
                Finding::Unmatched,
                format!("rank {rank} never received what {waiters} gives it in {what}; {last}"),
            ),
            Cause::Missed { .. } => {
                (Finding::Missed, format!("rank {rank} never called {what}, which {waiters} wait in; {last}"))
            }
            Cause::Undelivered { .. } if self.did_not_answer(rank) => (
                Finding::Stopped,
                format!("rank {rank} did not answer while {waiters} waited in {what}; {last}"),
            ),
            Cause::Undelivered { .. } => {
                (Finding::Undelivered, format!("what rank {rank} sent did not reach {waiters} in {what}"))
            }
        };
        diagnosis(finding, [rank], text)
    }

    fn nothing(&self) -> Diagnosis {
        match &self.missing[..] {
            [] => {
                let text = format!("nothing failed in the records of {} ranks", self.records.len());
                diagnosis(Finding::Nothing, [], text)
            }
            missing => {
                let text = format!(
                    "{} left no record; nothing failed in the others",
                    ranks(missing.iter().copied())
                );
                diagnosis(Finding::Gone, missing.iter().copied(), text)
            }
        }
    }

    /// Whether the others gave up because of this rank.
    fn did_not_answer(&self, rank: usize) -> bool {
        self.failure().is_some_and(|failure| failure.root.iter().any(|suspect| suspect.rank == rank))
    }

    /// The first failure, in the words of the rank where it happened if that left a record.
    fn failure(&self) -> Option<&FirstFailure> {
        let mut known =
            self.records.values().filter_map(|record| Some((record.rank, record.failure.as_ref()?)));
        let first_hand = known.clone().find(|(rank, failure)| *rank == failure.rank);
        first_hand.or_else(|| known.next()).map(|(_, failure)| failure)
    }

    /// An end of the waits that somebody gave up, or of all waits if nobody did.
    fn cause(&self, is_meant: impl Fn(&Cause<'_>) -> bool) -> Option<Cause<'_>> {
        let waits = || {
            let standings = self.standings.iter();
            standings.flat_map(|(rank, standing)| standing.waits.iter().map(|wait| (*rank, wait)))
        };
        let overdue: Vec<_> = waits().filter(|(_, wait)| wait.waiting.overdue).collect();
        let from = if overdue.is_empty() { waits().collect() } else { overdue };
        follow(&self.standings, from).into_iter().find(is_meant)
    }

    /// Who waits for a cause, and in what.
    fn waiters(&self, cause: &Cause<'_>) -> (String, String) {
        let (Cause::Silent { wait, .. } | Cause::Missed { wait, .. } | Cause::Undelivered { wait, .. }) =
            cause;
        let same = |standing: &Standing| {
            standing.waits.iter().any(|other| (other.queue, other.sequence) == (wait.queue, wait.sequence))
        };
        let waiters = self.standings.iter().filter(|(_, standing)| same(standing)).map(|(rank, _)| *rank);
        (ranks(waiters), wait.what.clone())
    }

    fn describe(&self, rank: usize, entry: &Entry) -> String {
        self.records.get(&rank).map(|record| entry.describe(&record.groups)).unwrap_or_default()
    }
}

fn diagnosis(finding: Finding, ranks: impl IntoIterator<Item = usize>, text: String) -> Diagnosis {
    Diagnosis { finding, ranks: ranks.into_iter().collect(), text }
}

/// Ranks in words.
fn ranks(ranks: impl Iterator<Item = usize>) -> String {
    let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
    match &ranks[..] {
        [one] => format!("rank {one}"),
        several => format!("ranks {}", several.join(", ")),
    }
}
