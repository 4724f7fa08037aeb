//! What a rank computes on: its device, and what a machine has.

pub mod doctor;
mod rank_device;

pub(crate) use rank_device::{Processor, advice, check, environment, prepare, room};
