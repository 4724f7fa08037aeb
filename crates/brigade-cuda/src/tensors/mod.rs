//! What Burn's tensors add to GPUs and NCCL: which memory a tensor is, when it may be touched, and core's collectives.

mod buffer;
mod burn_order;
mod collectives;
mod groups;
#[cfg(feature = "autotune")]
mod kept_choices;
mod messages;
mod rank_gpu;

pub use collectives::NcclCollectives;
pub use groups::{Options, groups, host_groups};
pub use rank_gpu::{RankGpu, check, count};
