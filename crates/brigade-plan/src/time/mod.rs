//! How long a step takes: blocks by a roofline, collectives by latency and bandwidth, and both together by playing every rank's list of actions.

mod blocks;
mod collectives;
pub mod failures;
pub mod overlap;
mod parts;
mod play;
mod steady;

pub use blocks::{BlockTime, BlockTimeInputs, block_times, optimizer_seconds};
pub use collectives::{GroupPlacement, Network, PlannedAlgorithm};
pub use parts::StepParts;
pub use play::{PlayedBlock, PlayedStage, StepPlan, play};
pub use steady::{play_long, shortened};
