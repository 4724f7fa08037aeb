//! What each node knows about one start of the ranks once they have exited. The launchers exchange it.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::failure::{OtherRank, StoppedRank};
use crate::interrupt::InterruptKind;

/// What a request to end the ranks comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopOrigin {
    /// A signal to a launcher.
    Signal,
    /// A rank that exited with [`exit::PREEMPTED`](crate::exit::PREEMPTED), perhaps because others were told to.
    Rank,
    /// A node that came later: the ranks are to be started again with it.
    WaitingNode,
}

/// A request to end the ranks that came before any of them failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    pub kind: InterruptKind,
    /// The signal's name, or the rank that exited first, or the node that joins.
    pub source: String,
    pub origin: StopOrigin,
}

/// What one node knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeReport {
    pub node: usize,
    pub host: String,
    pub stop_request: Option<StopRequest>,
    /// Whether its launcher got a signal at any time.
    pub signalled: bool,
    pub ranks: Vec<RankReport>,
    /// The root cause as far as this node knows: the run's root cause is that of one of the nodes.
    pub root_cause: Option<RootCause>,
    pub stopped_ranks: Vec<StoppedRank>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: OtherRank,
    pub panicked: bool,
}

/// What the report shows of the rank that failed first.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RootCause {
    pub rank: usize,
    pub panic: Vec<String>,
    pub last_lines: Vec<String>,
    pub log: PathBuf,
}

/// A node whose launcher is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostNode {
    /// Its number, where it is known.
    pub node: Option<usize>,
    pub reason: String,
    /// When, since the ranks were started.
    pub after: Option<Duration>,
}

impl LostNode {
    /// A loss for which no single node can be named, while no rank ran.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self { node: None, reason: reason.into(), after: None }
    }
}
