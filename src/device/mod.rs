//! The device that a rank computes on, and what a machine offers.

pub mod doctor;
mod node_gpus;
mod rank_device;

pub use node_gpus::{NodeGpu, node_gpus};
pub use rank_device::most_ranks_per_node;
pub(crate) use rank_device::{
    MakesHostGroups, RankDevice, check_node, environment_advice, prepare_process, rank_environment,
};
