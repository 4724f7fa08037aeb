//! How the process of a rank exited.

use std::{fmt, process::ExitStatus, time::Duration};

use serde::{Deserialize, Serialize};

use crate::exit;

const SIGABRT: i32 = signal_hook::consts::SIGABRT;

/// Why a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// The launcher killed it because it had sent no heartbeat for this long.
    HeartbeatTimeout(Duration),
    /// It was killed, but the system did not end it in time (it hangs in the kernel).
    Unkillable,
}

impl ExitReason {
    /// True for exit code 0.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// Whether the process ended itself, by an exit or by SIGABRT, and so may have said why.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Code(_) | Self::Signal(SIGABRT))
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
                write!(f, "killed after {} s without a heartbeat", silence.as_secs())
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

/// The exit of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankExit {
    /// The rank.
    pub rank: usize,
    /// Why it exited.
    pub reason: ExitReason,
    /// When, since the ranks of all nodes were started.
    pub after: Duration,
    /// True if the launcher had asked it to stop.
    pub stopped_by_launcher: bool,
}

impl RankExit {
    /// True if the rank ended as it should: with success, or preempted.
    pub(crate) fn is_clean(&self) -> bool {
        self.reason.is_success() || self.reason.is_preempted()
    }
}

impl fmt::Display for RankExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {} after {:.1} s", self.rank, self.reason, self.after.as_secs_f64())?;
        if self.stopped_by_launcher { f.write_str(", stopped by the launcher") } else { Ok(()) }
    }
}
