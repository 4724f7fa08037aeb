//! The phases of one start of the ranks.

use std::time::Instant;

/// How far a start of the ranks has come, with the time of the next step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The ranks run, and none has failed.
    Running,
    /// A rank failed; the others may show the root cause.
    AwaitingRootCause { until: Instant },
    /// The ranks save a checkpoint.
    Preempting { until: Instant },
    /// The ranks got SIGINT.
    Stopping { until: Instant },
    /// The ranks got SIGKILL.
    Killed { until: Instant },
}

impl Phase {
    /// When the next phase begins.
    pub fn until(self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::AwaitingRootCause { until }
            | Self::Preempting { until }
            | Self::Stopping { until }
            | Self::Killed { until } => Some(until),
        }
    }
}
