//! The status of a rank, as far as others need it to find out what holds up the world.

use serde::{Deserialize, Serialize};

use super::record::{Entry, FlightRecord, GroupRecord, State, Waiting};
use crate::op::call::OpType;

/// How many operations and counts a status has at most, so that the message stays short.
const MAX_WAITS: usize = 32;
const MAX_COUNTS: usize = 256;

/// What a rank waits for, or that it waits for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankStatus {
    /// What is in flight, oldest first.
    pub(super) waits: Vec<Wait>,
    /// How many operations it has called, by queue.
    pub(super) calls: Vec<(Queue, u64)>,
    /// The last operation that is complete, and how many microseconds ago it became so.
    pub(super) last: Option<(String, u64)>,
}

/// An operation in flight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wait {
    pub(super) queue: Queue,
    pub(super) sequence: u64,
    pub(super) what: String,
    /// Microseconds since it was called.
    pub(super) since: u64,
    pub(super) waiting: Waiting,
}

/// A sequence of operations that are ordered among each other: of a group and, for transfers, with another world rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Queue {
    Collectives(u64),
    Sends(u64, usize),
    Receives(u64, usize),
}

impl Queue {
    /// The peer's queue that corresponds to this one on `rank`.
    pub(super) fn counterpart(self, rank: usize) -> Self {
        match self {
            Queue::Sends(group, _) => Queue::Receives(group, rank),
            Queue::Receives(group, _) => Queue::Sends(group, rank),
            queue => queue,
        }
    }
}

impl RankStatus {
    /// The status of a rank at `now`, in microseconds since its world began.
    pub(crate) fn new(groups: &[GroupRecord], entries: &[Entry], now: u64) -> Self {
        let unfinished = entries.iter().filter(|entry| entry.state != State::Done);
        let mut waits: Vec<Wait> = unfinished.map(|entry| Wait::new(entry, groups, now)).collect();
        // The operations that somebody is waiting for say most.
        waits.sort_by_key(|wait| (!wait.waiting.awaited, std::cmp::Reverse(wait.since)));
        waits.truncate(MAX_WAITS);
        let mut calls = Vec::new();
        for group in groups.iter().rev() {
            calls.push((Queue::Collectives(group.number), group.collectives));
            for (peer, transfers) in &group.transfers {
                calls.push((Queue::Sends(group.number, *peer), transfers.sends));
                calls.push((Queue::Receives(group.number, *peer), transfers.receives));
            }
        }
        calls.truncate(MAX_COUNTS);
        let done = entries.iter().filter(|entry| entry.state == State::Done);
        let last = done.max_by_key(|entry| entry.finished).map(|entry| {
            let ago = now.saturating_sub(entry.finished.unwrap_or(now));
            (entry.describe(groups), ago)
        });
        Self { waits, calls, last }
    }

    /// The rank's status when its record was made.
    pub(super) fn of(record: &FlightRecord) -> Self {
        Self::new(&record.groups, &record.entries, record.recorded)
    }

    /// Whether it has called an operation.
    pub(super) fn has_called(&self, queue: Queue, sequence: u64) -> bool {
        self.calls.iter().any(|(known, calls)| *known == queue && *calls > sequence)
    }
}

impl Wait {
    fn new(entry: &Entry, groups: &[GroupRecord], now: u64) -> Self {
        let group = groups.get(entry.group).map_or(0, |group| group.number);
        let queue = match (entry.peer, entry.call.operation) {
            (Some(peer), OpType::Send) => Queue::Sends(group, peer),
            (Some(peer), _) => Queue::Receives(group, peer),
            (None, _) => Queue::Collectives(group),
        };
        Self {
            queue,
            sequence: entry.call.sequence,
            what: entry.describe(groups),
            since: now.saturating_sub(entry.called),
            waiting: entry.waiting.as_deref().cloned().unwrap_or_default(),
        }
    }

    /// The ranks that it waits for.
    pub(super) fn on(&self) -> impl Iterator<Item = usize> {
        self.waiting.absent.iter().chain(&self.waiting.stalled).copied()
    }
}
