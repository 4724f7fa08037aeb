//! How a run ended, and which rank or node caused it.

pub mod decision;
pub mod event;
pub mod failure;
pub mod rank_exit;
pub mod report;

use std::fmt;

use self::{
    failure::{NodeFailure, RankFailure},
    rank_exit::{ExitReason, RankExit},
};
use crate::{exit, interrupt::InterruptKind};

/// How the ranks of all nodes ended, the last time they were started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks exited with 0.
    Done,
    /// A rank failed.
    Failed(RankFailure),
    /// Another node's launcher died or cannot be reached.
    NodeLost(NodeFailure),
    /// All ranks were preempted and exited with [`exit::PREEMPTED`] (or 0); or one did so by itself, and the launcher ended the
    /// others.
    Preempted {
        /// The signal's name, or the rank that exited first.
        signal: String,
        /// The ranks, in the order in which they exited.
        exits: Vec<RankExit>,
    },
    /// A signal to a launcher ended the run.
    Interrupted {
        /// The signal's name.
        signal: String,
        /// The ranks, in the order in which they exited.
        exits: Vec<RankExit>,
    },
}

impl Outcome {
    /// The outcome when a signal arrives while no rank runs.
    pub(crate) fn without_ranks(signal: String, kind: InterruptKind) -> Self {
        match kind {
            InterruptKind::Stop => Self::Interrupted { signal, exits: vec![] },
            InterruptKind::Preempt => Self::Preempted { signal, exits: vec![] },
        }
    }

    /// The launcher's own exit code: 0 done, 1 failed, 2 if the rank that failed first exited with 2 (wrong usage),
    /// 75 preempted, even if a node was lost before all had saved, or an elastic run that lacks nodes, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Done => exit::DONE,
            Self::Preempted { .. } => exit::PREEMPTED,
            Self::Interrupted { .. } => exit::INTERRUPTED,
            Self::NodeLost(lost) if lost.start_again => exit::PREEMPTED,
            Self::NodeLost(_) => exit::FAILED,
            Self::Failed(failure) => match failure.root_cause.reason {
                ExitReason::Code(code) if code == i32::from(exit::USAGE) => exit::USAGE,
                ExitReason::Code(code) if code == i32::from(exit::INTERRUPTED) => exit::INTERRUPTED,
                _ => exit::FAILED,
            },
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("all ranks are done"),
            Self::Failed(failure) => failure.fmt(f),
            Self::NodeLost(lost) => lost.fmt(f),
            Self::Preempted { signal, exits } => {
                let how = match exits.iter().all(RankExit::is_clean) {
                    true => "all ranks exited cleanly",
                    false => "the launcher ended the other ranks",
                };
                write!(f, "preempted by {signal}; {how}")
            }
            Self::Interrupted { signal, .. } => write!(f, "interrupted by {signal}"),
        }
    }
}
