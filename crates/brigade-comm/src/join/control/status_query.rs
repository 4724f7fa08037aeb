//! Asks each rank, over the control plane, what it is waiting for.
//!
//! A rank whose operation has timed out asks rank 0, which asks all ranks, follows the waits and answers. Every rank's control
//! thread answers, even while the rank computes; a rank that does not answer is stopped, or its host is gone.

use std::time::{Duration, Instant};

use brigade_sorted::SortedMap;

use crate::error::Diagnosis;
use crate::flight::{RankStatus, STATUS_DELAY, diagnose_stall};

/// How long a rank may take to answer.
const ANSWER: Duration = Duration::from_millis(1500);

/// How long rank 0 may take for its diagnosis, before it counts as unresponsive itself.
pub(in crate::join) const DIAGNOSIS: Duration = Duration::from_millis(3000);

/// A status query on rank 0.
pub(in crate::join) struct StatusQuery {
    since: Instant,
    askers: Vec<usize>,
    statuses: SortedMap<usize, RankStatus>,
}

impl StatusQuery {
    pub(in crate::join) fn new() -> Self {
        Self { since: Instant::now(), askers: Vec::new(), statuses: SortedMap::new() }
    }

    /// Another rank wants a diagnosis too.
    pub(in crate::join) fn add_asker(&mut self, rank: usize) {
        self.askers.push(rank);
    }

    /// A rank has answered.
    pub(in crate::join) fn add(&mut self, rank: usize, status: RankStatus) {
        self.statuses.insert(rank, status);
    }

    /// How long to wait for the other ranks' answers.
    pub(in crate::join) fn time_left(&self, others: usize) -> Duration {
        let wait = if self.statuses.len() < others { ANSWER } else { STATUS_DELAY };
        wait.saturating_sub(self.since.elapsed())
    }

    /// Ends the query with a diagnosis for each rank that asked. `last_received` says when the others' last messages came.
    pub(in crate::join) fn close(
        mut self,
        own: RankStatus,
        last_received: impl Iterator<Item = (usize, Instant)>,
    ) -> Vec<(usize, Diagnosis)> {
        let unresponsive: Vec<_> = last_received
            .filter(|(rank, _)| !self.statuses.contains_key(rank))
            .map(|(rank, last_received)| (rank, last_received.elapsed()))
            .collect();
        self.statuses.insert(0, own);
        let diagnosis = |asker| (asker, diagnose_stall(&self.statuses, asker, &unresponsive));
        self.askers.iter().copied().map(diagnosis).collect()
    }
}
