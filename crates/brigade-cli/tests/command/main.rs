//! Drives the real `brigade` binary: what it writes, what it refuses, and how it ends.

#![allow(clippy::unwrap_used)]

mod backends;
mod book;
mod chaos;
mod checkpoints;
mod claims;
mod endings;
mod equality;
mod first_moments;
mod generate;
mod launch;
#[cfg(feature = "object-store")]
mod object_store;
mod place;
mod plan;
mod processes;
mod results;
mod runs;
mod survival;
mod worlds;
mod wrong_input;
