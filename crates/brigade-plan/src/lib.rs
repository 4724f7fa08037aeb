//! What a configuration will do, as arithmetic: which actions each rank of a pipeline performs in
//! which order, which blocks it holds, when it has which parameters, how many bytes it keeps and sends.
//!
//! Nothing here runs: everything is a pure function of a few numbers, so that it can be printed,
//! drawn, checked by properties, and be the same on every rank. This crate knows neither tensors
//! nor transports.

mod footprint;
mod schedule;
mod split;
mod stage;
mod unshard;

pub use footprint::{
    Amount, BoundaryTensor, CHUNK, Configuration, Footprint, FootprintError, MemoryFootprint, REDUCING,
    SavedActivations, Sent, StageFootprint, StepTraffic, UnitSize,
};
pub use schedule::{
    Action, Pass, Pipeline, PipelineScheduleKind, ScheduleError, Span, Task, Timeline, formula,
};
pub use split::{SplitError, balanced, by_hand, ranges, split};
pub use stage::{Stage, StageSchedule};
pub use unshard::{BlockRun, ReshardPolicy, UnshardStep, most_unsharded, unshard_plan};
