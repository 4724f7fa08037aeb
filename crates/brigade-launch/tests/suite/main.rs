//! The launcher with real processes: this test binary starts itself as launcher and as rank, and `sh` as ranks.
#![allow(clippy::unwrap_used)]

mod elastic;
mod elastic_network;
mod heartbeat;
mod interrupt;
mod launcher;
mod multi_node;
mod preemption;
mod process;
mod restart;
mod worlds;
