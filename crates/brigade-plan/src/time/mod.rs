//! How long a step takes: blocks by a roofline, collectives by latency and bandwidth, and both together by simulating every rank's list of actions.

mod blocks;
mod collectives;
pub mod failures;
pub mod overlap;
mod parts;
mod simulate;
mod steady;

pub use blocks::{BlockTime, BlockTimeInputs, block_times, optimizer_seconds};
pub use collectives::{GroupPlacement, Network, PlannedAlgorithm};
pub use parts::StepParts;
pub use simulate::{SimulatedBlock, SimulatedStage, StepPlan, simulate};
pub use steady::{shortened, simulate_long};
