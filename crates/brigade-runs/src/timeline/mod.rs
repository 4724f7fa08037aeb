//! Timelines of some steps of a run: who stands idle, why, and what split of the model would leave less.
//!
//! - `work`: what each rank and each block took.
//! - `idle`: what ranks waited for, and for whom.
//! - `expected`: the schedule as it would run with these times, for this split of the model and for others.

mod expected;
mod idle;
mod text;
mod work;

use std::fs;
use std::path::{Path, PathBuf};

use brigade_report::timeline::{PROFILE_FOLDER, Timeline};

use crate::error::{Error, Result};

pub use expected::{Advice, expected_events};
pub use idle::{IdleCause, IdleTime, Reason};
use work::Work;

/// Who stood idle in some steps, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Idle {
    /// The first and the last step.
    pub steps: (u64, u64),
    /// The mean time of a step.
    pub step_seconds: f64,
    /// Each rank's idle time.
    pub ranks: Vec<IdleTime>,
    /// Of pipelines: the schedule with the times that blocks took.
    pub advice: Option<Advice>,
    /// By how much clocks of ranks may be apart, in seconds.
    pub clock_error: f64,
}

/// Finds out who stood idle.
pub fn idle(timeline: &Timeline) -> Idle {
    let work = Work::of(timeline);
    let info = &timeline.other_data;
    let steps = (info.last_step - info.first_step + 1) as f64;
    let longest = work.ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
    Idle {
        steps: (info.first_step, info.last_step),
        step_seconds: longest / steps,
        ranks: idle::of_ranks(&work),
        advice: expected::advice(&work),
        clock_error: info.clock_error_us / 1e6,
    }
}

/// The file of a run's timeline: that of these steps (`10..12`), or the newest. The path of a timeline itself is taken, too.
///
/// # Errors
/// If there is none.
pub fn find(run: &Path, steps: Option<&str>) -> Result<PathBuf> {
    if run.is_file() {
        return Ok(run.to_owned());
    }
    if !run.is_dir() {
        return Err(Error::NoFolder { path: run.to_owned() });
    }
    let folder = run.join(PROFILE_FOLDER);
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let range = |path: &PathBuf| -> Option<String> {
        let range = name(path)?.strip_prefix("steps-")?.strip_suffix(".json")?.replacen('-', "..", 1);
        range.split("..").all(|number| number.parse::<u64>().is_ok()).then_some(range)
    };
    let mut there: Vec<(PathBuf, String)> =
        entries.filter_map(|path| range(&path).map(|range| (path, range))).collect();
    there.sort_by_cached_key(|(path, _)| fs::metadata(path).and_then(|found| found.modified()).ok());
    let wanted =
        steps.map(|steps| if steps.contains("..") { steps.to_owned() } else { format!("{steps}..{steps}") });
    let found = there.iter().rev().find(|(_, range)| wanted.as_ref().is_none_or(|wanted| wanted == range));
    found.map(|(path, _)| path.clone()).ok_or_else(|| Error::NoTimeline {
        path: run.to_owned(),
        steps: wanted.unwrap_or_default(),
        there: there.iter().map(|(_, range)| range.clone()).collect(),
    })
}

/// Reads a timeline, without the [schedule](expected_events) that may stand beside it.
///
/// # Errors
/// If it cannot be read, or another program wrote it.
pub fn read(path: &Path) -> Result<Timeline> {
    let bytes = fs::read(path).map_err(Error::file(path))?;
    let wrong = |why: String| Error::NotATimeline { path: path.to_owned(), why };
    let mut timeline: Timeline = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let info = &timeline.other_data;
    if info.last_step < info.first_step || info.first_step == 0 {
        return Err(wrong("it has no steps".into()));
    }
    expected::remove_expected(&mut timeline);
    Ok(timeline)
}
