//! The training step of one rank: forward and backward by a schedule, the reduction of gradients, the update.

pub(crate) mod accumulation;
mod batch_seed;
pub(crate) mod engine;
pub(crate) mod forward_backward;
pub(crate) mod fragments;
mod gradient_hook;
mod initialization;
pub(crate) mod inner_steps;
mod metric_sums;
mod own_schedule;
mod pass;
mod predict;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod running_state;
pub(crate) mod settings;
pub(crate) mod strategy;
mod update;
mod window;
pub(crate) mod workers;

pub use accumulation::PairwiseSum;
pub use engine::Engine;
pub use forward_backward::recompute::Recompute;
pub use gradient_hook::{ParameterPart, UnitGradient};
pub use report::{Evaluation, OuterReport, RoundReport, StepReport};
pub use rounds::{Share, WorkerLink, WorkerLinkSender, WorkerLinks};
pub use settings::{CheckBlocks, EngineSettings, NonFinite};
pub use strategy::{
    AsyncServer, Compressed, DataParallel, Fragments, LocalUpdates, OuterDtype, OuterOptimizer, ReducedUnit,
    Reduction, ReductionState, Rounds, Strategy, Synchronous, Update,
};
pub use workers::OuterSums;
