//! The launcher with real processes: this test binary starts itself as launcher and as rank, and `sh` as ranks.
#![allow(clippy::unwrap_used)]

mod heart;
mod interrupt;
mod launcher;
mod nodes;
mod preemption;
mod process;
mod restart;
mod worlds;
