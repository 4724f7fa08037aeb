//! Ranks as threads.

use std::thread;
use std::time::Duration;

use brigade_comm::{Group, MemoryGroup, Timeouts, in_memory, threads};

/// Longer than any check takes, and short enough that a check which waits in vain ends.
const TIMEOUTS: Timeouts =
    Timeouts { init: Duration::from_secs(60), step: Duration::from_secs(60), host: Duration::from_secs(30) };

/// Runs `rank` on `n` threads, each with its group of one world.
///
/// # Panics
/// If a rank panics: its group then fails, so that the others end too.
pub fn on_ranks(n: usize, rank: impl Fn(Group) + Sync) {
    run(threads(n, TIMEOUTS), rank);
}

/// As [`on_ranks`], on the engine that exchanges buffers in memory.
///
/// # Panics
/// If a rank panics: its group then fails, so that the others end too.
pub fn on_ranks_in_memory(n: usize, rank: impl Fn(MemoryGroup) + Sync) {
    run(in_memory(n, TIMEOUTS), rank);
}

fn run<G: Send>(groups: Vec<G>, rank: impl Fn(G) + Sync) {
    thread::scope(|scope| {
        for group in groups {
            let rank = &rank;
            scope.spawn(move || rank(group));
        }
    });
}
