//! What a caller of `launch` learns while ranks run.

use std::{io, path::PathBuf};

use super::{Outcome, rank_exit::RankExit};

/// What happens during [`launch`](crate::launch), for a caller that wants to print it.
#[derive(Debug)]
pub enum Event {
    /// A rank's process was started.
    Started {
        /// The rank.
        rank: usize,
        /// Its process id, which is also its process group.
        pid: u32,
    },
    /// A rank of this node exited.
    Exited(RankExit),
    /// The launcher got a signal that ends the run, here or on another node. A second one kills the ranks at
    /// once.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
    /// The run is preempted: the ranks are saving a checkpoint.
    Preempted {
        /// The signal's name, or the rank that exited with [`exit::PREEMPTED`](crate::exit::PREEMPTED).
        signal: String,
    },
    /// These ranks were still running at the end of their grace period, and were killed.
    Killed {
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// The run failed and will be started again: on all nodes, or once a node that was lost is back.
    Restarting {
        /// The number of the restart, from 1.
        number: u32,
        /// How many restarts are allowed.
        of: u32,
        /// How the run failed; `Display` gives the whole report.
        failure: Box<Outcome>,
    },
    /// A rank's log cannot be written any more; the run goes on.
    LogLost {
        /// The rank.
        rank: usize,
        /// Its log.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}
