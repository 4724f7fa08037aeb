//! Commands of `brigade` as processes.

mod command;

pub use crate::process_table::{kill, ranks, send, wait_until_gone};
pub use command::{Ended, RunningCommand};
