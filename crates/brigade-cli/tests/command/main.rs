//! Drives the real `brigade` binary: what it writes, what it refuses, and how it ends.

#![allow(clippy::unwrap_used)]

mod failures;
mod setup;
mod subcommands;
mod training;

use setup::{place, processes, runs, safetensors};
