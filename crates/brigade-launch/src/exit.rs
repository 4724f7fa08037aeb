//! The exit codes of every Brigade program.

/// The run is done.
pub const DONE: u8 = 0;
/// The run failed.
pub const FAILED: u8 = 1;
/// The command line, the configuration or the environment is wrong; nothing was started.
pub const USAGE: u8 = 2;
/// Ctrl-C or SIGTERM ended the run (128 + SIGINT, as shells count).
pub const INTERRUPTED: u8 = 130;
