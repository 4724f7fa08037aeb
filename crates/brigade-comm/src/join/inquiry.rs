//! Who waits for whom, asked through the control plane.
//!
//! A rank whose operation is overdue asks rank 0, which asks everybody, follows the waits and answers. Every rank's
//! control thread answers, also while the rank computes; one that does not is stopped, or its host is gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::Verdict;
use crate::flight::{SETTLE, Standing, investigate};

/// How long a rank may take to answer.
const ANSWER: Duration = Duration::from_millis(1500);

/// How long rank 0 may take to give its verdict, before it counts as silent itself.
pub(super) const VERDICT: Duration = Duration::from_millis(3000);

/// An inquiry on rank 0.
pub(super) struct Inquiry {
    since: Instant,
    askers: Vec<usize>,
    standings: BTreeMap<usize, Standing>,
}

impl Inquiry {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), askers: Vec::new(), standings: BTreeMap::new() }
    }

    /// Another rank wants to know.
    pub(super) fn add_asker(&mut self, rank: usize) {
        self.askers.push(rank);
    }

    /// A rank has answered.
    pub(super) fn add(&mut self, rank: usize, standing: Standing) {
        self.standings.insert(rank, standing);
    }

    /// How long to wait for answers of the other ranks.
    pub(super) fn time_left(&self, others: usize) -> Duration {
        let wait = if self.standings.len() < others { ANSWER } else { SETTLE };
        wait.saturating_sub(self.since.elapsed())
    }

    /// Ends the inquiry: who holds up each rank that asked. `heard` says when the others were last heard of.
    pub(super) fn close(
        mut self,
        own: Standing,
        heard: impl Iterator<Item = (usize, Instant)>,
    ) -> Vec<(usize, Verdict)> {
        let silent: Vec<_> = heard
            .filter(|(rank, _)| !self.standings.contains_key(rank))
            .map(|(rank, heard)| (rank, heard.elapsed()))
            .collect();
        self.standings.insert(0, own);
        let verdict = |asker| (asker, investigate(&self.standings, asker, &silent));
        self.askers.iter().copied().map(verdict).collect()
    }
}
