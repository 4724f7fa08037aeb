//! The subcommands.

pub mod checkpoint;
pub mod coordinate;
pub mod doctor;
pub mod evaluate;
pub mod export;
pub mod generate;
pub mod inspect;
pub mod launch;
mod network;
pub mod plan;
pub mod runs;
pub mod submit;
pub mod train;
