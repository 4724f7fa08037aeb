//! The schedules by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ScheduleError;

/// Which schedule a pipeline runs.
///
/// As text `gpipe`, `1f1b` and `interleaved-1f1b`. Read in any case, with or without hyphens and
/// underscores, so that torchtitan's `GPipe`, `1F1B` and `Interleaved1F1B` are taken too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum PipelineScheduleKind {
    /// All forwards, then all backwards (Huang et al. 2019, GPipe).
    GPipe,
    /// One forward, one backward, after a warm-up that fills the pipeline (Narayanan et al. 2019,
    /// PipeDream; with a flush at the end of the step as in Narayanan et al. 2021).
    #[default]
    OneFOneB,
    /// The same over several chunks a rank, which makes the idle time smaller and the traffic larger
    /// (Narayanan et al. 2021, Megatron-LM).
    Interleaved,
}

impl PipelineScheduleKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GPipe, Self::OneFOneB, Self::Interleaved];

    /// The name that configuration files, flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved-1f1b",
        }
    }
}

impl fmt::Display for PipelineScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PipelineScheduleKind {
    type Err = ScheduleError;

    fn from_str(given: &str) -> Result<Self, ScheduleError> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|kind| plain(kind.name()) == plain(given))
            .ok_or_else(|| ScheduleError::Unknown { given: given.to_owned() })
    }
}

impl TryFrom<String> for PipelineScheduleKind {
    type Error = ScheduleError;

    fn try_from(given: String) -> Result<Self, ScheduleError> {
        given.parse()
    }
}

impl From<PipelineScheduleKind> for &'static str {
    fn from(kind: PipelineScheduleKind) -> Self {
        kind.name()
    }
}
