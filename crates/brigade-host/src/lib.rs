//! Collectives over tensors of any device, through host memory, for the CPU, wgpu, and CUDA without NCCL.
//!
//! - A tensor is copied from its device to the host, a process group of [`brigade_comm`] communicates the bytes, and the
//!   result is copied back: one copy each way, and back only the part that the rank keeps ([`DeviceCopies`]). If tensors
//!   already *are* in host memory ([`MemorySpace::Host`]), a whole tensor with a single owner is moved in and out without a
//!   copy.
//! - Sums are taken per element, pairwise in rank order: equal addends give equal bits on every device.
//! - Every operation has its group's deadline, and fails when the group fails.

mod collectives;
mod copies;
mod groups;
mod memory_space;
pub mod message;
mod page_pool;
mod pages;
mod region;
mod unsharded_buffer;

pub use collectives::HostCollectives;
pub use copies::DeviceCopies;
pub use groups::{SubgroupArgs, groups, subgroup};
pub use memory_space::MemorySpace;
