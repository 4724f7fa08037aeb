//! Ranks that are stopped for moments, as if something else ran on their cores.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustix::process::Signal;

use crate::bench::runner::Child;
use crate::process_table::{ranks, send};

/// When which rank is stopped.
#[derive(Debug, Clone, Copy)]
pub enum Interruption {
    /// One rank for every other 10 ms, from the record of a step on.
    HalfACore { rank: usize, after: usize },
    /// A rank by chance, once in each period; in milliseconds.
    ByChance { pause: u64, period: u64 },
}

/// A process that is stopped until this is dropped.
struct Stopped(u32);

impl Interruption {
    /// Stops ranks of a run until it ends.
    ///
    /// # Errors
    /// If the run takes too long.
    pub fn apply(self, child: &mut Child, folder: &Path) -> Result<()> {
        let metrics = folder.join("metrics.jsonl");
        let mut chances = ChaCha8Rng::seed_from_u64(0);
        while child.ended()?.is_none() {
            let ranks = ranks(child.pid());
            // Not while they start, which has deadlines and is not measured.
            let (rank, pause, rest) = match self {
                Self::HalfACore { rank, after } => (rank, 10, (steps(&metrics) > after).then_some(10)),
                Self::ByChance { pause, period } => {
                    let rank = (chances.next_u32() % 2) as usize;
                    (rank, pause, (steps(&metrics) > 0).then_some(period - pause))
                }
            };
            if let (Some(pid), Some(_)) = (ranks.get(rank), rest) {
                let stopped = Stopped::new(*pid);
                sleep(Duration::from_millis(pause));
                drop(stopped);
            }
            sleep(Duration::from_millis(rest.unwrap_or(10)));
        }
        Ok(())
    }
}

impl Stopped {
    fn new(pid: u32) -> Self {
        send(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        send(self.0, Signal::CONT);
    }
}

/// How many steps a run has recorded.
fn steps(metrics: &Path) -> usize {
    std::fs::read(metrics).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
}
