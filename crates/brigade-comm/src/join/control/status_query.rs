//! Who waits for whom, asked through the control plane.
//!
//! A rank whose operation is overdue asks rank 0, which asks everybody, follows the waits and answers. Every rank's
//! control thread answers, also while the rank computes; one that does not is stopped, or its host is gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::Diagnosis;
use crate::flight::{RankStatus, STATUS_DELAY, diagnose_stall};

/// How long a rank may take to answer.
const ANSWER: Duration = Duration::from_millis(1500);

/// How long rank 0 may take to give its verdict, before it counts as silent itself.
pub(in crate::join) const VERDICT: Duration = Duration::from_millis(3000);

/// An inquiry on rank 0.
pub(in crate::join) struct StatusQuery {
    since: Instant,
    askers: Vec<usize>,
    statuses: BTreeMap<usize, RankStatus>,
}

impl StatusQuery {
    pub(in crate::join) fn new() -> Self {
        Self { since: Instant::now(), askers: Vec::new(), statuses: BTreeMap::new() }
    }

    /// Another rank wants to know.
    pub(in crate::join) fn add_asker(&mut self, rank: usize) {
        self.askers.push(rank);
    }

    /// A rank has answered.
    pub(in crate::join) fn add(&mut self, rank: usize, status: RankStatus) {
        self.statuses.insert(rank, status);
    }

    /// How long to wait for answers of the other ranks.
    pub(in crate::join) fn time_left(&self, others: usize) -> Duration {
        let wait = if self.statuses.len() < others { ANSWER } else { STATUS_DELAY };
        wait.saturating_sub(self.since.elapsed())
    }

    /// Ends the inquiry: who holds up each rank that asked. `heard` says when the others were last heard of.
    pub(in crate::join) fn close(
        mut self,
        own: RankStatus,
        heard: impl Iterator<Item = (usize, Instant)>,
    ) -> Vec<(usize, Diagnosis)> {
        let unresponsive: Vec<_> = heard
            .filter(|(rank, _)| !self.statuses.contains_key(rank))
            .map(|(rank, heard)| (rank, heard.elapsed()))
            .collect();
        self.statuses.insert(0, own);
        let diagnosis = |asker| (asker, diagnose_stall(&self.statuses, asker, &unresponsive));
        self.askers.iter().copied().map(diagnosis).collect()
    }
}
