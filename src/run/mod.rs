//! A run, from the command line to the exit code.

mod dry_run;
mod ending;
mod launch;
mod node;
mod program;
mod rank;
mod run_folder;
mod session;

pub use launch::launch;
pub use program::{Program, Role};
pub(crate) use run_folder::StartFrom;
pub use session::Session;
