//! Waiting for a moment, and killing.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::plan::{KillPlan, Moment, Victim};
use crate::chaos::choices::Choices;
use crate::chaos::process::{RunningCommand, kill, ranks};
use crate::chaos::run::{Activity, Before, RunDir, STEPS, count_steps};

/// How often the directory is read: a save takes milliseconds.
const POLL: Duration = Duration::from_micros(100);

/// A kill that was carried out.
pub struct Killed {
    pub during: Activity,
    pub at: Instant,
    /// The ranks that were running.
    pub ranks: Vec<u32>,
    /// The newest checkpoint just before.
    pub newest: Option<u64>,
}

/// Waits as planned and kills. `None` if the run ended first.
pub fn kill_as_planned(
    plan: KillPlan,
    command: &mut RunningCommand,
    folder: &RunDir,
    before: &Before,
    choices: &mut Choices,
) -> Result<Option<Killed>> {
    while !has_come(plan.moment, folder, before) {
        if command.ended()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
    let until = Instant::now() + plan.delay;
    while Instant::now() < until {
        if command.ended()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(2)));
    }
    let mut running = ranks(command.pid());
    while running.is_empty() && plan.victim == Victim::Rank {
        if command.ended()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(POLL);
        running = ranks(command.pid());
    }
    let newest = folder.names().newest();
    let rank = choices.one(&running);
    let hit = match plan.victim {
        Victim::Rank => rank.is_some_and(kill),
        Victim::Launcher => kill(command.pid()),
        Victim::Both => kill(command.pid()) | rank.is_some_and(kill),
    };
    let (during, at) = (folder.activity(before, STEPS), Instant::now());
    Ok(hit.then_some(Killed { during, at, ranks: running, newest }))
}

fn has_come(moment: Moment, folder: &RunDir, before: &Before) -> bool {
    let names = || folder.names();
    match moment {
        Moment::Start | Moment::Anywhere => true,
        Moment::Writing => names().partial().is_some_and(|partial| !before.names.has(partial)),
        Moment::Publishing => names()
            .partial()
            .is_some_and(|partial| folder.has_manifest(partial) && !before.names.has(partial)),
        Moment::Removing => names().newest() > before.newest,
        Moment::End => {
            before.newest == Some(STEPS)
                || names().newest() == Some(STEPS)
                || count_steps(&folder.metrics()) >= STEPS
        }
    }
}
