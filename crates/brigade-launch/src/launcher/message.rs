//! What happens while ranks run: to be told to the caller, and between the supervisor's threads.

use std::{io, path::PathBuf, time::Instant};

use super::outcome::{Outcome, RankExit};
use crate::nodes::NodeEvent;

/// What happens during [`launch`](crate::launch), for whoever wants to print it.
#[derive(Debug)]
pub enum Event {
    /// A rank's process was started.
    Started {
        /// The rank.
        rank: usize,
        /// Its process id, which is also its process group.
        pid: u32,
    },
    /// A rank of this node ended.
    Exited(RankExit),
    /// The launcher got a signal that ends the run, here or on another node. A second one kills the ranks at
    /// once.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
    /// The run is preempted: the ranks are saving a checkpoint.
    Preempted {
        /// The signal's name, or the rank that left with [`exit::PREEMPTED`](crate::exit::PREEMPTED).
        signal: String,
    },
    /// These ranks still ran when their grace was over, and were killed.
    Killed {
        /// The ranks.
        ranks: Vec<usize>,
    },
    /// The run failed and will be started again: on all nodes, or once a node that was lost is back.
    Restarting {
        /// The number of the restart, from 1.
        number: u32,
        /// How many there may be.
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

/// What the threads of the supervisor tell it.
pub enum Message {
    /// Of a rank of this node, in the given start of the world.
    Rank { round: u32, local_rank: usize, news: RankEvent },
    /// The launcher got this signal.
    Signal(i32),
    /// From the other nodes' launchers.
    Node(NodeEvent),
}

pub enum RankEvent {
    Exited(Instant),
    StreamEnded,
    LogLost(io::Error),
}
