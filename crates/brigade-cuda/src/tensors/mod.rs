//! Collectives over Burn's tensors: which memory a tensor has, when it may be touched, and the groups of a mesh.

mod collectives;
mod flat_tensor;
mod group_builder;
mod groups;
mod messages;
mod order;
mod products;
mod rank_gpu;

pub use collectives::NcclCollectives;
pub use group_builder::NcclOptions;
pub use groups::{groups, host_groups};
pub use rank_gpu::{RankGpu, check_gpus, gpu_count};
