//! The training step of one rank: forward and backward by a schedule, the reduction of gradients, the update.

pub(crate) mod engine;
pub(crate) mod forward_backward;
pub(crate) mod gradients;
mod pass;
pub(crate) mod rounds;
pub(crate) mod running_state;
pub(crate) mod strategy;
mod update;
mod window;
pub(crate) mod workers;

pub use engine::Engine;
pub use engine::report::{Evaluation, OuterReport, RoundReport, StepReport};
pub use engine::settings::{CheckBlocks, EngineSettings, NonFinite};
pub use forward_backward::recompute::Recompute;
pub use gradients::accumulation::PairwiseSum;
pub use gradients::hook::{ParameterPart, UnitGradient};
pub use rounds::{Share, WorkerLink, WorkerLinkSender, WorkerLinks};
pub use strategy::{
    AsyncServer, Compressed, DataParallel, Fragments, LocalUpdates, OuterDtype, OuterOptimizer, ReducedUnit,
    Reduction, ReductionState, Rounds, Strategy, Synchronous, Update,
};
pub use workers::OuterSums;
