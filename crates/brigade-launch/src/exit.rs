//! The exit codes of every Brigade program.

/// The run is done.
pub const DONE: u8 = 0;
/// The run failed.
pub const FAILED: u8 = 1;
/// The command line, the configuration or the environment is wrong; nothing was started.
pub const USAGE: u8 = 2;
/// The run was preempted (SIGTERM, SIGUSR1) and has saved a checkpoint, where there was anything to save: start it again to
/// go on. It is
/// `EX_TEMPFAIL` of `sysexits.h`, which job systems take for "try again later".
pub const PREEMPTED: u8 = 75;
/// Ctrl-C ended the run, or a second signal did (128 + SIGINT, as shells count).
pub const INTERRUPTED: u8 = 130;
