//! The crate below its tensors, on hosts without GPUs, over stand-ins for the driver and NCCL (`tests/stand_ins/`). These tests show
//! which calls are made, in which order, and what happens with the results; not how NVIDIA's libraries behave.
//!
//! Both libraries are loaded once in a process. So each test runs in a process of its own: it starts itself again with the
//! stand-ins in the loader's path, and their settings in the environment.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod harness;

mod doctor;
mod driver;
mod nccl;
mod operations;
mod order;
mod pipelines;
mod simulation;
mod teardown;
mod watchdog;
