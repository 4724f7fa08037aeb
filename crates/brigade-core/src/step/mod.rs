//! The training step of one rank: forward and backward by a schedule, the reduction of gradients, the update.

pub(crate) mod accumulation;
pub(crate) mod engine;
mod initialization;
mod interpreter;
mod metric_sums;
mod micro_batches;
mod non_finite;
mod own_schedule;
mod pass;
mod recompute;
pub(crate) mod strategy;
mod tape;
mod tied_gradients;
mod window;

pub use accumulation::PairwiseSum;
pub use engine::{Batch, Engine, EngineSettings, Evaluation, NonFinite, StepReport};
pub use recompute::Recompute;
pub use strategy::{DataParallel, ReducedUnit, Reduction, Strategy, Synchronous, Update};
