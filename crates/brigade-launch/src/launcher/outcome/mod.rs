//! How ranks end, and which of them is to blame.

use std::{fmt, process::ExitStatus, time::Duration};

use serde::{Deserialize, Serialize};

use super::failure::{NodeFailure, RankFailure};
use crate::exit;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// The launcher killed it because its heart had been silent for this long.
    HeartbeatTimeout(Duration),
    /// It was killed but the system did not end it in time (it hangs in the kernel).
    Unkillable,
}

impl ExitReason {
    /// True for exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// True for [`exit::PREEMPTED`].
    pub fn is_preempted(self) -> bool {
        self == Self::Code(exit::PREEMPTED.into())
    }
}

impl From<ExitStatus> for ExitReason {
    fn from(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or_default()), Self::Code)
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "killed by {}", signal_name(*signal)),
            Self::HeartbeatTimeout(silence) => {
                write!(f, "killed, as it had not moved for {} s", silence.as_secs())
            }
            Self::Unkillable => f.write_str("killed, but it did not end"),
        }
    }
}

/// `SIGKILL (9)`.
pub fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("signal");
    format!("{name} ({signal})")
}

/// The end of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankExit {
    /// The rank.
    pub rank: usize,
    /// How it ended.
    pub reason: ExitReason,
    /// When, since the ranks of all nodes were started.
    pub after: Duration,
    /// True if the launcher had told it to end.
    pub stopped_by_launcher: bool,
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {} after {:.1} s", self.rank, self.reason, self.after.as_secs_f64())?;
        if self.stopped_by_launcher { f.write_str(", stopped by the launcher") } else { Ok(()) }
    }
}

/// How the ranks of all nodes ended, the last time they were started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks exited with 0.
    Done,
    /// A rank failed.
    Failed(RankFailure),
    /// Another node's launcher died or cannot be reached.
    NodeLost(NodeFailure),
    /// All ranks have saved what they had: they exited with [`exit::PREEMPTED`] (or 0).
    Preempted {
        /// The signal's name, or the rank that left first.
        signal: String,
        /// The ranks, in the order in which they ended.
        ends: Vec<RankExit>,
    },
    /// A signal to a launcher ended the run.
    Interrupted {
        /// The signal's name.
        signal: String,
        /// The ranks, in the order in which they ended.
        ends: Vec<RankExit>,
    },
}

impl Outcome {
    /// The launcher's own exit code: 0 done, 1 failed, 2 if the rank to blame exited with 2 (wrong usage),
    /// 75 preempted, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Done => exit::DONE,
            Self::Preempted { .. } => exit::PREEMPTED,
            Self::Interrupted { .. } => exit::INTERRUPTED,
            Self::NodeLost(_) => exit::FAILED,
            Self::Failed(failure) => match failure.root.reason {
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
            Self::Preempted { signal, .. } => write!(f, "preempted by {signal}; all ranks left in order"),
            Self::Interrupted { signal, .. } => write!(f, "interrupted by {signal}"),
        }
    }
}

/// The failed rank to blame, as an index into `ends`, which are in order of time.
///
/// Only ranks that failed by themselves count. One that was killed, panicked, was silent, or says with its exit
/// code what happened (2: wrong usage, 130: interrupted) goes before one that exited with another error.
pub fn root_cause<'a>(
    ends: impl Iterator<Item = &'a RankExit>,
    panicked: impl Fn(usize) -> bool,
) -> Option<usize> {
    const RUST_PANIC: i32 = 101;
    let speaks = |end: &RankExit| match end.reason {
        ExitReason::Signal(_) | ExitReason::HeartbeatTimeout(_) => true,
        ExitReason::Code(code) => matches!(code, 2 | 130 | RUST_PANIC) || panicked(end.rank),
        ExitReason::Unkillable => false,
    };
    let failed =
        |end: &RankExit| !end.stopped_by_launcher && !end.reason.is_success() && !end.reason.is_preempted();
    let failures = ends.enumerate().filter(|(_, end)| failed(end));
    failures.min_by_key(|(_, end)| !speaks(end)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, reason: ExitReason, stopped_by_launcher: bool) -> RankExit {
        RankExit { rank, reason, after: Duration::from_millis(1500), stopped_by_launcher }
    }

    #[test]
    fn blames_the_cause_and_not_the_witness() {
        let (one, kill) = (ExitReason::Code(1), ExitReason::Signal(9));
        let root = |ends: &[RankExit]| root_cause(ends.iter(), |rank| rank == 7).map(|i| ends[i].rank);
        assert_eq!(root(&[end(3, one, false), end(1, one, false)]), Some(3));
        assert_eq!(root(&[end(3, one, false), end(1, kill, false)]), Some(1));
        assert_eq!(root(&[end(3, one, false), end(1, kill, true)]), Some(3));
        assert_eq!(root(&[end(3, one, false), end(7, one, false)]), Some(7));
        assert_eq!(
            root(&[end(3, one, false), end(5, ExitReason::HeartbeatTimeout(Duration::ZERO), false)]),
            Some(5)
        );
        assert_eq!(
            root(&[end(3, one, false), end(1, ExitReason::Code(101), false), end(2, kill, false)]),
            Some(1)
        );
        assert_eq!(root(&[end(0, ExitReason::Code(0), false), end(1, kill, true)]), None);
        assert_eq!(root(&[end(0, ExitReason::Code(75), false)]), None);
    }
}
