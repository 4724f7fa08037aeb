//! What a configuration costs each rank: bytes that it holds, calls and bytes that it sends in a step.
//!
//! - The numbers are those that a run counts. They come from simulating each stage's [`StageSchedule`](crate::StageSchedule) with
//!   the training step's rules for what is held when.
//! - Next to them are the formulas of the ZeRO paper (Rajbhandari et al. 2020, "ZeRO: memory optimizations toward
//!   training trillion parameter models"). What a stage holds beyond its formula is its working set.
//! - The data-parallel ranks of a stage are the same, except for remainders of a few elements per unit. If they differ, the numbers
//!   are those of the largest rank, which is the first.
//! - What blocks save for the backward ([`SavedActivations`]) comes from the model. A run does not count it, but its device's memory
//!   does.
//! - Not included: temporary tensors of the optimizer, gradients of tied weights in transfer, and
//!   all-gathers of scalars (losses, norms).

mod activations;
mod alternatives;
mod configuration;
mod gradients;
mod memory;
mod render;
mod sizes;
mod stage_units;
mod traffic;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use alternatives::{Activations, Alternative};
pub use configuration::{CHUNK, Configuration, FootprintError, OuterSteps};
pub use gradients::REDUCING;
pub use memory::MemoryFootprint;
pub use sizes::{Amount, BoundaryTensor, SavedActivations, UnitSize};
pub use traffic::{Sent, StepTraffic};

use stage_units::StageUnits;

/// The cost of a configuration, stage by stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// One for each pipeline stage, in order.
    pub stages: Vec<StageFootprint>,
}

/// What each rank of one pipeline stage holds and sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageFootprint {
    /// The stage's blocks, chunk by chunk.
    pub blocks: Vec<Range<usize>>,
    /// Bytes of one rank.
    pub memory: MemoryFootprint,
    /// Calls and bytes that one rank sends in a step.
    pub traffic: StepTraffic,
}

impl Footprint {
    /// The cost of a configuration.
    ///
    /// # Errors
    /// If the configuration is impossible: sizes that do not match, a schedule that cannot run.
    ///
    /// ```
    /// use brigade_plan::{Configuration, Footprint, UnitSize};
    /// let configuration = Configuration {
    ///     units: (0..4).map(|block| UnitSize::trained(1 << 20, vec![block])).collect(),
    ///     split: vec![4],
    ///     dp: 2,
    ///     zero_stage: 1,
    ///     ..Configuration::default()
    /// };
    /// let stage = &Footprint::of(&configuration)?.stages[0];
    /// assert_eq!(stage.memory.parameters.peak, 4 * (4 << 20));
    /// assert_eq!(stage.memory.optimizer.peak, 8 * (4 << 20) / 2);
    /// # Ok::<(), brigade_plan::FootprintError>(())
    /// ```
    pub fn of(configuration: &Configuration) -> Result<Self, FootprintError> {
        let pipeline = configuration.checked()?;
        let stage = |rank| {
            let stage_units = StageUnits::new(configuration, &pipeline, rank);
            StageFootprint {
                blocks: (0..configuration.chunks).map(|chunk| stage_units.stage.blocks(chunk)).collect(),
                memory: memory::memory(&stage_units),
                traffic: traffic::traffic(&stage_units),
            }
        };
        Ok(Self { stages: (0..configuration.pp).map(stage).collect() })
    }
}
