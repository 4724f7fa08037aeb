//! The other subcommands, checkpoints, and the commands that README and book show.

mod book;
mod checkpoints;
mod consolidate;
mod evaluate;
mod generate;
mod launch;
mod plan;
mod reports;
#[cfg(feature = "object-store")]
mod stores;
mod submit;
