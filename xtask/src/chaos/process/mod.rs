//! Commands of `brigade` as processes.

mod command;
mod table;

pub use command::{Ended, RunningCommand};
pub use table::{kill, ranks, send, wait_until_gone};
