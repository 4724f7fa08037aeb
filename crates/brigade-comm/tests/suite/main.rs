//! One behaviour on every transport: threads, shared memory, TCP, and groups that mix them.

#![allow(clippy::unwrap_used, reason = "all of this is tests")]

mod errors;
mod failures;
mod flight;
mod hosts;
mod interfaces;
mod network;
mod open_files;
mod operations;
mod processes;
mod rendezvous;
mod worlds;
