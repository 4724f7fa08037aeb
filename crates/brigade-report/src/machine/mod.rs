//! The machine that a rank runs on: its memory, the peak of its device, and findings about it.

pub mod capacity;
pub mod finding;
pub mod memory;
pub mod peak_flops;
