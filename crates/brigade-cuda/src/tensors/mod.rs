//! What Burn's tensors add to GPUs and NCCL: which memory a tensor is, when it may be touched, and core's collectives.

mod burn_order;
mod collectives;
mod flat_tensor;
mod groups;
mod messages;
mod rank_gpu;

pub use collectives::NcclCollectives;
pub use groups::{Options, groups, host_groups};
pub use rank_gpu::{RankGpu, check, count};
