//! Ranks as threads.

use std::thread;
use std::time::Duration;

use brigade_comm::{Group, Timeouts, threads};

/// Longer than any check takes, and short enough that one which waits in vain ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `rank` on `n` threads, each with its group of one world.
///
/// # Panics
/// If a rank panics: its group then fails, so that the others end too.
pub fn on_ranks(n: usize, rank: impl Fn(Group) + Sync) {
    thread::scope(|scope| {
        for group in threads(n, Timeouts { init: PATIENCE, step: PATIENCE, ..Timeouts::default() }) {
            let rank = &rank;
            scope.spawn(move || rank(group));
        }
    });
}
