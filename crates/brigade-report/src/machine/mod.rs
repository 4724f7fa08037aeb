//! The machine that a rank runs on: its memory, what its device can do at best, and what was found of it.

pub mod finding;
pub mod memory;
pub mod peak_flops;
