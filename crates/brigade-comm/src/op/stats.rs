//! What a group has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::op::call::OpType;

/// Calls of one operation and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Completed calls.
    pub calls: u64,
    /// Payload bytes that this rank sent to other ranks, without headers and padding.
    pub bytes: u64,
}

/// Counts per operation of one group on one rank, since the group was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    counts: [Count; OpType::ALL.len()],
    between_hosts: u64,
}

impl Stats {
    /// Payload bytes that this rank sent to ranks of other hosts, of all operations.
    pub fn between_hosts(&self) -> u64 {
        self.between_hosts
    }

    /// The counts of one operation.
    pub fn of(&self, operation: OpType) -> Count {
        self.counts[operation as usize - 1]
    }

    /// The operations that were called at least once, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (OpType, Count)> + '_ {
        OpType::ALL.into_iter().map(|operation| (operation, self.of(operation))).filter(|(_, c)| c.calls > 0)
    }

    /// The sum over all operations.
    pub fn total(&self) -> Count {
        self.counts.iter().fold(Count::default(), |sum, count| Count {
            calls: sum.calls + count.calls,
            bytes: sum.bytes + count.bytes,
        })
    }
}

/// The running counters behind [`Stats`].
#[derive(Debug, Default)]
pub struct Counters {
    counters: [(AtomicU64, AtomicU64); OpType::ALL.len()],
    between_hosts: AtomicU64,
}

impl Counters {
    /// Counts a completed call that sent this many bytes to other ranks.
    pub fn add(&self, operation: OpType, bytes: u64) {
        let (calls, sent) = &self.counters[operation as usize - 1];
        calls.fetch_add(1, Ordering::Relaxed);
        sent.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_between_hosts(&self, bytes: u64) {
        self.between_hosts.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn read(&self) -> Stats {
        let between_hosts = self.between_hosts.load(Ordering::Relaxed);
        let mut stats = Stats { between_hosts, ..Stats::default() };
        for (count, (calls, sent)) in stats.counts.iter_mut().zip(&self.counters) {
            *count = Count { calls: calls.load(Ordering::Relaxed), bytes: sent.load(Ordering::Relaxed) };
        }
        stats
    }
}
