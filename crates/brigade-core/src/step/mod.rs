//! The training step of one rank: forward and backward by a schedule, the reduction of gradients, the update.

pub(crate) mod engine;
mod evaluation;
pub(crate) mod forward_backward;
pub(crate) mod gradients;
mod pass;
pub(crate) mod report;
pub(crate) mod running_state;
pub(crate) mod settings;
pub(crate) mod strategy;
mod sums;
mod update;
mod window;

pub use engine::rounds::{RoundProgress, Share, WorkerLink, WorkerLinkSender, WorkerLinks};
pub use engine::workers::OuterSums;
pub use engine::{Engine, UntypedEngine};
pub use forward_backward::check_blocks::CheckBlocks;
pub use forward_backward::recompute::Recompute;
pub use gradients::accumulation::PairwiseSum;
pub use gradients::hook::{ParameterPart, UnitGradient};
pub use report::{Evaluation, OuterReport, RoundReport, StepReport};
pub use settings::{EngineSettings, NonFinite};
pub use strategy::{
    AsyncServer, Compressed, DataParallel, Fragments, LocalUpdates, OuterDtype, OuterOptimizer,
    OuterSchedule, ParameterServers, ReducedUnit, Reduction, ReductionState, Rounds, Strategy, Synchronous,
    Update,
};
