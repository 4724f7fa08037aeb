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
pub mod report;
pub mod runs;
pub mod scaling;
pub mod status;
pub mod submit;
pub mod train;
pub mod watch;
