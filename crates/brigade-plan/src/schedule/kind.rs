//! The schedules by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Placement, ScheduleError};

/// Which schedule a pipeline runs.
///
/// As text `gpipe`, `1f1b`, `interleaved-1f1b`, `zb-h1`, `zb-h2` and `zbv`. Read in any case, with or without hyphens and
/// underscores, so that torchtitan's `GPipe`, `1F1B`, `Interleaved1F1B` and `ZBVZeroBubble` are taken too.
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
    /// 1F1B with backwards in two halves: the gradients of weights are computed where 1F1B waits. No rank keeps the activations of more
    /// micro-batches than the first one of 1F1B does (Qi et al. 2023, "Zero Bubble Pipeline Parallelism").
    ZbH1,
    /// The same with nearly twice as many micro-batches in flight, so that no rank waits between its first action and its last, where
    /// forwards and halves take equally long.
    ZbH2,
    /// Two chunks a rank, the second of which goes through the ranks backwards: half the bubble of ZB-H1, and the same memory
    /// on all ranks (ZB-V there; Qi et al. 2024, "Pipeline Parallelism with Controllable Memory").
    Zbv,
}

impl PipelineScheduleKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::GPipe, Self::OneFOneB, Self::Interleaved, Self::ZbH1, Self::ZbH2, Self::Zbv];

    /// How others write names, apart from case, hyphens and underscores.
    const ALIASES: [(&str, Self); 1] = [("zbv-zero-bubble", Self::Zbv)];

    /// The name that configuration files, flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneFOneB => "1f1b",
            Self::Interleaved => "interleaved-1f1b",
            Self::ZbH1 => "zb-h1",
            Self::ZbH2 => "zb-h2",
            Self::Zbv => "zbv",
        }
    }

    /// Whether its backwards come in two halves.
    pub fn splits_backward(self) -> bool {
        matches!(self, Self::ZbH1 | Self::ZbH2 | Self::Zbv)
    }

    /// Which rank has which part of the model.
    pub fn placement(self) -> Placement {
        if self == Self::Zbv { Placement::V } else { Placement::Loop }
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
        let names = Self::ALL.into_iter().map(|kind| (kind.name(), kind));
        names
            .chain(Self::ALIASES)
            .find(|(name, _)| plain(name) == plain(given))
            .map(|(_, kind)| kind)
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
