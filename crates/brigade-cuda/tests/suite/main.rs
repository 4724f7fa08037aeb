//! All of the crate on hosts without GPUs, with stand-ins for the driver and for NCCL (`tests/stand_in/`).
//! They prove which calls are made, in which order, and what becomes of the answers; not how NVIDIA's
//! libraries behave.
//!
//! Both libraries are looked for once in a process, so each test runs in a process of its own: it starts
//! itself again with the stand-ins in the loader's path and with what they are told to do.
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
