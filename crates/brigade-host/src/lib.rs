//! Collectives over tensors of any device, through host memory: what the CPU, wgpu, and CUDA without NCCL share.
//!
//! - A tensor is copied from its device to the host, a process group of [`brigade_comm`] communicates the bytes, and the
//!   result is copied back: one copy each way, and back only the part that the rank keeps ([`DeviceCopies`]). Where tensors
//!   already *are* in host memory ([`Placement::Host`]), a tensor that is whole and solely owned is moved in and out without
//!   a copy.
//! - Sums are taken per element, pairwise in rank order: equal addends give equal bits on every device.
//! - Every operation has the deadline of its group, and fails as the group fails.

mod collectives;
mod copies;
mod groups;
pub mod message;
mod pages;
mod placement;
mod resident_buffer;

pub use collectives::HostCollectives;
pub use copies::DeviceCopies;
pub use groups::{SubgroupArgs, groups, subgroup};
pub use placement::Placement;
