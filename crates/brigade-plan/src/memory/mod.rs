//! Bytes that a rank of each stage holds, in closed form: what a search can afford for every configuration.
//!
//! [`Footprint`](crate::Footprint) counts the same for one configuration exactly, unit by unit; a test holds the two together. What blocks save
//! for their backward comes from a formula here, as nothing can be measured for a model that nobody has built yet.

mod accounting;
mod activations;
mod kept;
pub mod published;
mod stage;

use serde::Serialize;

pub use accounting::Accounting;
pub use activations::{ActivationSettings, layer_activations, loss_activations};
pub use kept::KeptBytes;
pub use stage::{Sharding, StageShape, stage_memory};

/// Bytes of one rank, by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryParts {
    /// Parameters in the type of the computation, or a rank's shard of them.
    pub parameters: u64,
    /// Gradients, their sums over micro-batches, and what compressed ones left out.
    pub gradients: u64,
    /// Master weights and the optimizer's moments.
    pub optimizer: u64,
    /// What blocks keep for their backward, of all micro-batches in flight, and what the running block needs.
    pub activations: u64,
    /// Gathered parameters, reductions in flight, messages between stages.
    pub buffers: u64,
    /// What the allocator cannot use between them.
    pub fragmentation: u64,
    /// On the host, where the optimizer is offloaded.
    pub host: u64,
}

impl MemoryParts {
    /// The share of activations and buffers that is lost between them: caching allocators hold 5% more than tensors have, as a rule.
    pub const FRAGMENTATION: f64 = 0.05;

    /// Bytes on the device.
    pub fn total(&self) -> u64 {
        let Self { parameters, gradients, optimizer, activations, buffers, fragmentation, host: _ } = self;
        parameters + gradients + optimizer + activations + buffers + fragmentation
    }

    /// Each part on the device with its name.
    pub fn parts(&self) -> [(&'static str, u64); 6] {
        let Self { parameters, gradients, optimizer, activations, buffers, fragmentation, host: _ } = *self;
        [
            ("parameters", parameters),
            ("gradients", gradients),
            ("optimizer", optimizer),
            ("activations", activations),
            ("buffers", buffers),
            ("fragmentation", fragmentation),
        ]
    }
}
