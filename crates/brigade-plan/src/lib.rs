//! What a configuration will do, computed in advance: the actions of each rank of a pipeline and their order, the blocks it
//! holds, when parameters are gathered and freed, and how many bytes it holds and sends.
//!
//! The planner (feature `planner`) builds on this: for a cluster and a model, a search computes the memory of every configuration and simulates the steps of the
//! best on all ranks, and a report says which to run.
//!
//! Nothing runs here. Everything is a pure function of a few numbers, so it can be printed, drawn and checked by properties, and it
//! is the same on every rank. This crate knows neither tensors nor transports.

#[cfg(feature = "planner")]
pub mod cluster;
mod columns;
mod footprint;
#[cfg(feature = "planner")]
pub mod memory;
#[cfg(feature = "planner")]
pub mod model;
#[cfg(feature = "planner")]
pub mod report;
mod schedule;
#[cfg(feature = "planner")]
pub mod search;
mod split;
mod stage;
#[cfg(feature = "planner")]
pub mod time;
mod unshard;

pub use footprint::{
    Activations, Alternative, Amount, BoundaryTensor, CHUNK, Configuration, Footprint, FootprintError,
    MemoryFootprint, OuterSteps, REDUCING, SavedActivations, Sent, StageFootprint, StepTraffic, UnitSize,
};
pub use schedule::{
    Action, Pass, Pipeline, PipelineScheduleKind, Placement, ScheduleError, SimulatedSpan, SimulatedTimeline,
    StageTask, formula,
};
pub use split::{SplitError, balanced, by_hand, by_shares, ranges, split};
pub use stage::{Stage, StageSchedule};
pub use unshard::{BlockRun, ReshardPolicy, UnshardStep, most_unsharded, unshard_plan};
