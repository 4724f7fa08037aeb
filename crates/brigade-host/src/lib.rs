//! Collectives over tensors of any device, staged through host memory: what the CPU, wgpu, and CUDA
//! without NCCL share.
//!
//! - A tensor is read from its device, the ranks' bytes are exchanged by [`brigade_comm`], and the result goes back
//!   where the tensor was: each way once, and of what a rank keeps alone ([`Crossings`]). Where tensors *are* host memory ([`Placement::Host`]), one that is whole and solely owned is
//!   moved in and out without a copy.
//! - Sums are taken per element, pairwise in rank order: the same bits whatever the device, for the same addends.
//! - Every operation has the deadline of its group, and fails as the group fails.

mod collectives;
mod groups;
pub mod message;
mod place;
mod region;
mod staging;

pub use collectives::HostCollectives;
pub use groups::{Axes, axes, groups};
pub use place::Placement;
pub use staging::Crossings;
