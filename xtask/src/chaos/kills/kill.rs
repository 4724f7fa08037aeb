//! Waiting for an instant, and killing.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::draw::{Aim, Draw, Plan, Victim};
use super::folder::{Activity, Before, Folder, steps};
use super::processes::{kill, ranks};
use super::reference::STEPS;
use super::start::Start;

/// Between two looks at the folder: a save takes milliseconds.
const LOOK: Duration = Duration::from_micros(100);

/// A kill that was carried out.
pub struct Killed {
    pub during: Activity,
    pub at: Instant,
    /// The ranks that there were.
    pub ranks: Vec<u32>,
    /// The newest checkpoint just before.
    pub newest: Option<u64>,
}

/// Waits as planned and kills. `None` if the run was over before.
pub fn carry_out(
    plan: Plan,
    start: &mut Start,
    folder: &Folder,
    before: &Before,
    draw: &mut Draw,
) -> Result<Option<Killed>> {
    while !has_come(plan.aim, folder, before) {
        if start.ended()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
    let until = Instant::now() + plan.delay;
    while Instant::now() < until {
        if start.ended()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(2)));
    }
    let mut there = ranks(start.pid());
    while there.is_empty() && plan.victim == Victim::Rank {
        if start.ended()?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
        there = ranks(start.pid());
    }
    let newest = folder.names().newest();
    let rank = draw.one(&there);
    let hit = match plan.victim {
        Victim::Rank => rank.is_some_and(kill),
        Victim::Launcher => kill(start.pid()),
        Victim::Both => kill(start.pid()) | rank.is_some_and(kill),
    };
    let (during, at) = (folder.activity(before, STEPS), Instant::now());
    Ok(hit.then_some(Killed { during, at, ranks: there, newest }))
}

fn has_come(aim: Aim, folder: &Folder, before: &Before) -> bool {
    let names = || folder.names();
    match aim {
        Aim::Start | Aim::Anywhere => true,
        Aim::Writing => names().partial().is_some_and(|partial| !before.names.has(partial)),
        Aim::Publishing => names()
            .partial()
            .is_some_and(|partial| folder.has_manifest(partial) && !before.names.has(partial)),
        Aim::Removing => names().newest() > before.newest,
        Aim::End => {
            before.newest == Some(STEPS)
                || names().newest() == Some(STEPS)
                || steps(&folder.metrics()) >= STEPS
        }
    }
}
