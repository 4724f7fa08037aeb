//! The planner against what others published and measured, and against the exact counts of this crate.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

mod clusters;
mod cores;
mod footprint;
mod large;
mod measured;
mod megatron;
mod models;
mod published;
mod reported;
mod searched;
mod sharded;
mod simulated;
