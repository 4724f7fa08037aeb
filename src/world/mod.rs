//! The world of ranks: how a rank joins it, and what all ranks must have in common.

mod agreement;
mod engine;
mod join;

pub(crate) use agreement::{
    all_gather_text, all_gather_whole_text, check_same, check_same_configuration, shared_by_workers,
};
pub(crate) use engine::HostEngine;
pub(crate) use join::{join, outer_join, timeouts};
