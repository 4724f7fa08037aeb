//! The CPU backend: Burn's Flex device, the process's heap, and collectives in host memory.
//!
//! A rank computes on one thread; ranks, not threads inside operations, fill the cores. Burn's
//! feature `rayon` is therefore off, and its SIMD paths, chosen at run time, are on.

mod collectives;
mod groups;
mod heap;
mod message;
mod region;

pub use collectives::HostCollectives;
pub use groups::groups;
pub use heap::{HUGE_PAGES, keep_heap};

use burn::tensor::Device;

/// The device of every rank.
pub fn device() -> Device {
    Device::flex()
}
