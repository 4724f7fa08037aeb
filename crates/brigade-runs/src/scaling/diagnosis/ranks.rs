//! Ranks that others wait for.

use brigade_report::{counted, duration, median};

use super::{Cause, Finding};
use crate::run::Run;
use crate::scaling::profile::Profile;
use crate::scaling::spent::Spent;

/// The gain in percent without which jitter is nothing special. Ranks that are well take turns being late, too: those on two virtual cores, which
/// have no core left for anything else, had 2% to 17%, and 33% or more where either was stopped now and then.
const USUAL_JITTER: f64 = 20.0;

/// Another rank each time.
pub fn jitter(profile: &Profile) -> Option<Finding> {
    let finding = Finding::new(Cause::Jitter, profile.jitter, profile.step, |gain| {
        format!(
            "in each step a different rank is last, by {} on average, and all wait for it: something else runs on the machines, or their processors \
            change frequency; with a core of its own for each rank, training would be {gain:.0}% faster",
            duration(profile.jitter)
        )
    })?;
    (finding.gain_percent >= USUAL_JITTER).then_some(finding)
}

/// A rank that does something else than the others.
pub fn host_stalls(profile: &Profile) -> Option<Finding> {
    let means: Vec<f64> = profile.rest_spent.iter().map(|spent| spent.mean).collect();
    let (rank, most) = greatest(&means)?;
    let usual = median(others(&means, rank)).unwrap_or(0.0);
    let spent = Spent { mean: most - usual, ..profile.rest_spent[rank] };
    let finding = Finding::new(Cause::HostStalls, spent.mean, profile.whole_step.mean, |gain| {
        let others = if profile.ranks > 1 { ", and the others wait for it" } else { "" };
        format!(
            "rank {rank} neither computes nor waits for {}{others}: a hook, `Dataset::batch`, writing files or a garbage collector blocks its thread; without \
            that, training would be {gain:.0}% faster",
            spent.text()
        )
    })?;
    Some(finding.at(rank))
}

/// Waiting for data, on the rank that waits longest.
pub fn starvation(run: &Run, profile: &Profile) -> Option<Finding> {
    let means: Vec<f64> = profile.data_wait_spent.iter().map(|spent| spent.mean).collect();
    let (rank, most) = greatest(&means)?;
    let usual = median(others(&means, rank)).unwrap_or(0.0);
    let (spent, step) = (profile.data_wait_spent[rank], profile.whole_step.mean);
    let is_one = profile.ranks > 1 && usual < most / 2.0;
    let who = if is_one { format!("rank {rank} waits") } else { "ranks wait".to_owned() };
    let readers = run.setting("train.readers").and_then(|readers| readers.parse().ok()).unwrap_or(1.0);
    let finding = Finding::new(Cause::InputStarvation, most, step, |gain| {
        format!(
            "{who} for data for {} ({:.0}% of the time): {}; data that arrives in time would make training {gain:.0}% faster",
            spent.text(),
            100.0 * most / step,
            more_readers(readers, most, step)
        )
    })?;
    Some(if is_one { finding.at(rank) } else { finding })
}

/// How many threads would read fast enough, if the disk and the processor let them.
fn more_readers(readers: f64, waited: f64, step: f64) -> String {
    // Threads that read all the time take as many steps as there are of them for one; without any, the wait is the reading.
    let reading = if readers > 0.0 { readers * step } else { waited };
    let enough = (reading / (step - waited).max(1e-3 * step)).ceil().clamp(1.0, 1024.0);
    match readers > 0.0 {
        true => format!(
            "{} cannot read fast enough, or the disk cannot; against the former, set `train.readers = {enough:.0}`",
            counted(readers as usize, "thread")
        ),
        false => format!("nothing is read ahead; `train.readers = {enough:.0}` does that"),
    }
}

/// A stage with more to do.
pub fn imbalance(profile: &Profile) -> Option<Finding> {
    let stages: Vec<f64> = (0..profile.stage_count()).map(|stage| profile.stage_compute(stage)).collect();
    let (stage, most) = greatest(&stages)?;
    let rest = median(others(&stages, stage))?;
    let finding = Finding::new(Cause::StageImbalance, profile.imbalance(), profile.step, |gain| {
        format!(
            "stage {stage} computes {:.2} times as long as the other stages, which wait for it; a more even split, if its blocks allow one \
             (`pipeline.balance = \"measured\"`, or fewer blocks for it in `pipeline.stages`), would make training up to {gain:.0}% faster",
            most / rest
        )
    })?;
    Some(finding.at(stage))
}

/// The greatest of some numbers, with its place.
fn greatest(values: &[f64]) -> Option<(usize, f64)> {
    values.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
}

fn others(values: &[f64], place: usize) -> impl Iterator<Item = f64> {
    values.iter().copied().enumerate().filter(move |(index, _)| *index != place).map(|(_, value)| value)
}
