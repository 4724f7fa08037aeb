//! What a configuration will do, as arithmetic: which actions each rank of a pipeline performs in
//! which order, which blocks it holds, when it has which parameters, how many bytes it keeps and sends.
//!
//! Nothing here runs: everything is a pure function of a few numbers, so that it can be printed,
//! drawn, checked by properties, and be the same on every rank. This crate knows neither tensors
//! nor transports.

mod footprint;
mod residency;
mod schedule;
mod split;
mod stage;

pub use footprint::{
    Amount, CHUNK, Configuration, CutTensor, Footprint, FootprintError, Inside, MemoryFootprint, REDUCING,
    Sent, StageFootprint, StepTraffic, UnitSize,
};
pub use residency::{Moves, Release, Turn, most_gathered, residency};
pub use schedule::{Action, Pass, Pipeline, ScheduleError, ScheduleKind, Span, Task, Timeline, formula};
pub use split::{SplitError, balanced, by_hand, ranges, split};
pub use stage::{Program, Stage};
