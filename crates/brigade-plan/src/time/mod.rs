//! How long a step takes: blocks by a roofline, collectives by latency and bandwidth, and both together by playing every rank's list of actions.

mod blocks;
mod collectives;
pub mod failures;
pub mod overlap;
mod parts;
mod play;
mod steady;

pub use blocks::{BlockTime, ComputeSettings, block_times, optimizer_seconds};
pub use collectives::{Algorithm, Network, Ranks};
pub use parts::StepParts;
pub use play::{PlayedBlock, PlayedStage, StepPlan, play};
pub use steady::{play_long, shortened};
