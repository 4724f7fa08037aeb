//! The exit codes of every Brigade program.

/// The run is done.
pub const DONE: u8 = 0;
/// The run failed.
pub const FAILED: u8 = 1;
/// The command line, the configuration or the environment is wrong; nothing was started.
pub const USAGE: u8 = 2;
/// The run was preempted (SIGTERM, SIGUSR1) and has saved a checkpoint, if there was anything to save: start it again to
/// resume. It is `EX_TEMPFAIL` of `sysexits.h`, which job systems take for "try again later".
pub const PREEMPTED: u8 = 75;
/// Ctrl-C or a second signal ended the run (128 + SIGINT, as in shells).
pub const INTERRUPTED: u8 = 130;
