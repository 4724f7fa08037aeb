//! A run, from the command line to the exit code.

mod dry_run;
mod ending;
mod exhaustion;
mod launch;
mod node;
mod notify;
mod own_flags;
mod program;
mod rank;
mod run_folder;
mod session;
mod start;

pub use launch::{Launch, launch};
pub use program::{Program, Role};
pub(crate) use run_folder::StartFrom;
pub use session::Session;
