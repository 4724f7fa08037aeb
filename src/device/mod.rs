//! The device that a rank computes on, and what a machine offers.

pub mod doctor;
mod rank_device;

pub(crate) use rank_device::{
    RankDevice, check_node, environment_advice, max_ranks_per_node, prepare_process, rank_environment,
};
