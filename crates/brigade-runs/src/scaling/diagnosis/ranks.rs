//! Ranks that others wait for.

use super::{Cause, Finding};
use crate::numbers::{duration, median};
use crate::run::Run;
use crate::scaling::profile::Profile;

/// How much longer than its peers a rank must take to be slow, as a factor.
const SLOW: f64 = 1.05;

/// The gain in percent without which jitter is nothing special: two ranks on the virtual cores of one machine have 4.
const USUAL_JITTER: f64 = 10.0;

/// The share of steps, from some step on, in which a rank must be slow, and not by chance.
const STEADY: f64 = 0.75;

/// How many steps a rank must be slow for it to be said since when.
const FEWEST_SLOW: u64 = 5;

/// The rank that takes longest compared with the others that do the same work.
pub fn slow_rank(run: &Run, profile: &Profile) -> Option<Finding> {
    let excess = |rank: &usize| profile.compute_of[*rank] - peers(profile, *rank);
    let rank = (0..profile.ranks)
        .filter(|rank| has_peers(profile, *rank))
        .max_by(|a, b| excess(a).total_cmp(&excess(b)))?;
    let peers = peers(profile, rank);
    let factor = profile.compute_of[rank] / peers;
    if !factor.is_finite() || factor < SLOW {
        return None;
    }
    let (since, share) = since(run, profile, rank, factor);
    if share < STEADY {
        return None;
    }
    // Of the very last steps it says nothing.
    let last = run.records.last().map_or(0, |record| record.step);
    let since =
        if since > 1 && since + FEWEST_SLOW <= last { format!(" since step {since}") } else { String::new() };
    let finding = Finding::new(Cause::SlowRank, excess(&rank), profile.step, |gain| {
        format!(
            "rank {rank} takes {factor:.2} times as long as the others for the same work{since}, and they wait for it; on a processor like \
            theirs, not shared with anything, training would be {gain:.0}% faster"
        )
    })?;
    Some(finding.at(rank))
}

/// The first step from which on a rank is slow: where most steps before are not, and most after are; and the share of those after that
/// are.
fn since(run: &Run, profile: &Profile, rank: usize, factor: f64) -> (u64, f64) {
    let limit = 1.0 + (factor - 1.0) / 2.0;
    let slow: Vec<(u64, bool)> = (run.records.iter())
        .filter_map(|record| {
            let compute = &record.rank_seconds.as_ref()?.compute;
            let others = compute.iter().enumerate().filter(|(other, _)| is_peer(profile, rank, *other));
            let others = median(others.map(|(_, seconds)| *seconds))?;
            Some((record.step, *compute.get(rank)? > limit * others))
        })
        .collect();
    // The place that leaves the fewest steps on the wrong side.
    let all_after = slow.iter().filter(|(_, is_slow)| !is_slow).count() as i64;
    let mut wrong = all_after;
    let mut best = (wrong, slow.first().map_or(1, |(step, _)| *step));
    for (index, (_, is_slow)) in slow.iter().enumerate() {
        wrong += if *is_slow { 1 } else { -1 };
        if let Some((step, _)) = slow.get(index + 1).filter(|_| wrong < best.0) {
            best = (wrong, *step);
        }
    }
    let after = slow.iter().filter(|(step, _)| *step >= best.1);
    let (all, are) = after.fold((0, 0), |(all, are), (_, is_slow)| (all + 1, are + u64::from(*is_slow)));
    // Old files do not tell ranks apart.
    (best.1, if all > 0 { are as f64 / all as f64 } else { 1.0 })
}

fn is_peer(profile: &Profile, rank: usize, other: usize) -> bool {
    other != rank && profile.work.get(other) == profile.work.get(rank)
}

fn has_peers(profile: &Profile, rank: usize) -> bool {
    (0..profile.ranks).any(|other| is_peer(profile, rank, other))
}

/// What the other ranks with the same work take.
fn peers(profile: &Profile, rank: usize) -> f64 {
    let others = (0..profile.ranks).filter(|other| is_peer(profile, rank, *other));
    median(others.map(|other| profile.compute_of[other])).unwrap_or(profile.compute_of[rank])
}

/// Another rank each time. Ranks that are well differ by some percent from step to step, too.
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
    let (rank, most) = greatest(&profile.rest_of)?;
    let usual = median(others(&profile.rest_of, rank)).unwrap_or(0.0);
    let finding = Finding::new(Cause::HostStalls, most - usual, profile.step, |gain| {
        format!(
            "rank {rank} neither computes nor waits for {} of each step, and the others wait for it: a hook, `Dataset::batch`, writing files or a \
            garbage collector holds its thread; without that, training would be {gain:.0}% faster",
            duration(most - usual)
        )
    })?;
    Some(finding.at(rank))
}

/// Waiting for data, on the rank that waits longest.
pub fn starvation(run: &Run, profile: &Profile) -> Option<Finding> {
    let (rank, most) = greatest(&profile.data_wait_of)?;
    let usual = median(others(&profile.data_wait_of, rank)).unwrap_or(0.0);
    let is_one = profile.ranks > 1 && usual < most / 2.0;
    let who = if is_one { format!("rank {rank} waits") } else { "ranks wait".to_owned() };
    let readers = run.setting("train.readers").and_then(|readers| readers.parse().ok()).unwrap_or(1.0);
    let finding = Finding::new(Cause::InputStarvation, most, profile.step, |gain| {
        format!(
            "{who} for data for {} of each step ({:.0}%): {}; data that arrives in time would make training {gain:.0}% faster",
            duration(most),
            100.0 * most / profile.step,
            more_readers(readers, most, profile.step)
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
            "reading is too slow for {readers:.0} thread{}, or the disk is; `train.readers = {enough:.0}` would be enough for the first",
            if readers > 1.0 { "s" } else { "" }
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
