//! Ranks that take longer than others that do the same work.

use brigade_report::{StepRecord, median};

use super::{Cause, Finding};
use crate::run::Run;
use crate::scaling::profile::Profile;

/// How much longer than its peers a rank must take to be slow, as a factor.
const SLOW: f64 = 1.05;

/// The share of steps, from some step on, in which a rank must be slow, and not by chance.
const STEADY: f64 = 0.75;

/// How many steps a rank must be slow for it to be said since when.
const FEWEST_SLOW: u64 = 5;

/// The most ranks, or groups of neighbouring ones, that are named one by one.
const MOST_NAMED: usize = 6;

/// A rank, and how it compares with those that do the same work and are not slow.
struct Slow {
    rank: usize,
    factor: f64,
    /// How much longer it takes than they do, in seconds.
    excess: f64,
    /// The first step from which on it is slow.
    since: u64,
}

/// The ranks that take longer than the others that do the same work, and what they cost.
pub fn slow_ranks(run: &Run, profile: &Profile) -> Option<Finding> {
    let mut works = profile.work.clone();
    works.sort_unstable();
    works.dedup();
    let (mut excess, mut slow) = (vec![0.0; profile.ranks], Vec::new());
    for alike in works.into_iter().map(|work| Alike::new(run, profile, work)) {
        for rank in alike.ranks.iter().copied() {
            excess[rank] = profile.compute_of[rank] - alike.usual;
            slow.extend(alike.slow(profile, rank));
        }
    }
    slow.sort_by(|a, b| b.excess.total_cmp(&a.excess));
    let slowest = slow.first()?;
    let is_slow = |rank: usize| slow.iter().any(|slow| slow.rank == rank);
    // All wait for the slowest one that is left.
    let left = |is_mended: &dyn Fn(usize) -> bool| {
        let others = (0..profile.ranks).filter(|rank| !is_mended(*rank));
        others.map(|rank| excess[rank]).fold(0.0, f64::max)
    };
    let saved = slowest.excess - left(&is_slow);
    let alone = slowest.excess - left(&|rank| rank == slowest.rank);
    // Of the very last steps it says nothing.
    let records = run.records_of_last_mesh();
    let [first, last] =
        [records.first(), records.last()].map(|record| record.map_or(0, |record| record.step));
    let since = match slowest.since > first && slowest.since + FEWEST_SLOW <= last {
        true => format!(" since step {}", slowest.since),
        false => String::new(),
    };
    let factors = match slow.last().map(|last| (last.factor, slowest.factor)) {
        Some((least, most)) if format!("{least:.2}") != format!("{most:.2}") => {
            format!("{:.2} to {:.2}", least.min(most), least.max(most))
        }
        _ => format!("{:.2}", slowest.factor),
    };
    let ranks: Vec<usize> = slow.iter().map(|slow| slow.rank).collect();
    let several = ranks.len() > 1;
    let finding = Finding::new(Cause::SlowRank, saved, profile.step, |gain| {
        let (takes, them, processors) = match several {
            false => ("takes", "it", "a processor like theirs"),
            true => ("take", "them", "processors like theirs"),
        };
        let of_one = match several {
            true => format!(" ({:.0}% with rank {} alone)", percent(alone, profile.step), slowest.rank),
            false => String::new(),
        };
        format!(
            "{} {takes} {factors} times as long as the others for the same work{since}, and they wait for {them}; on {processors}, not shared with \
            anything, training would be {gain:.0}% faster{of_one}",
            named(&ranks, profile.ranks)
        )
    })?;
    Some(if several { finding } else { finding.at(slowest.rank) })
}

fn percent(saved: f64, step: f64) -> f64 {
    100.0 * saved.max(0.0) / (step - saved).max(1e-3 * step)
}

/// Ranks that do the same work.
struct Alike<'a> {
    ranks: Vec<usize>,
    /// What those of them take that are not slow.
    usual: f64,
    /// The same in each step, with what each rank takes.
    steps: Vec<(u64, f64, &'a [f64])>,
}

impl<'a> Alike<'a> {
    fn new(run: &'a Run, profile: &Profile, work: usize) -> Self {
        let ranks: Vec<usize> = (0..profile.ranks).filter(|rank| profile.work[*rank] == work).collect();
        let usual = middle_of_fast(ranks.iter().map(|rank| profile.compute_of[*rank]).collect());
        let is_fast = |rank: &&usize| profile.compute_of[**rank] <= SLOW * usual;
        let fast: Vec<usize> = ranks.iter().filter(is_fast).copied().collect();
        let in_step = |record: &'a StepRecord| {
            let compute = record.rank_seconds.as_ref()?.compute.as_slice();
            let usual = median(fast.iter().filter_map(|rank| compute.get(*rank).copied()))?;
            Some((record.step, usual, compute))
        };
        // Where none is slow, steps do not matter.
        let records = if fast.len() < ranks.len() { run.records_of_last_mesh() } else { &[] };
        let steps = records.iter().filter_map(in_step).collect();
        Self { ranks, usual, steps }
    }

    /// A rank, if it is slow, and not by chance.
    fn slow(&self, profile: &Profile, rank: usize) -> Option<Slow> {
        let seconds = profile.compute_of[rank];
        let factor = seconds / self.usual;
        if !factor.is_finite() || factor <= SLOW {
            return None;
        }
        let (since, share) = self.since(rank, factor);
        (share >= STEADY).then_some(Slow { rank, factor, excess: seconds - self.usual, since })
    }

    /// The first step from which on a rank is slow: where most steps before are not, and most after are; and the share of those after that
    /// are.
    fn since(&self, rank: usize, factor: f64) -> (u64, f64) {
        let limit = 1.0 + (factor - 1.0) / 2.0;
        let slow: Vec<(u64, bool)> = (self.steps.iter())
            .filter_map(|(step, usual, compute)| Some((*step, *compute.get(rank)? > limit * usual)))
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
}

/// The middle of the times near the fastest quarter, so that more than half of the ranks may be slow.
fn middle_of_fast(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let Some(fast) = seconds.get(seconds.len().saturating_sub(1) / 4).copied() else { return f64::NAN };
    median(seconds.into_iter().filter(|own| *own <= SLOW * fast)).unwrap_or(fast)
}

/// `rank 3`, `ranks 0, 2 and 4 to 7`, or how many of all.
fn named(ranks: &[usize], all: usize) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let groups: Vec<(usize, usize)> =
        sorted.chunk_by(|a, b| a + 1 == *b).map(|group| (group[0], group[group.len() - 1])).collect();
    let texts: Vec<String> = groups
        .iter()
        .flat_map(|(first, last)| match last - first {
            0 => vec![first.to_string()],
            1 => vec![first.to_string(), last.to_string()],
            _ => vec![format!("{first} to {last}")],
        })
        .collect();
    match texts.as_slice() {
        [one] if sorted.len() == 1 => format!("rank {one}"),
        [one] => format!("ranks {one}"),
        many if many.len() > MOST_NAMED => format!("{} of {all} ranks", sorted.len()),
        [rest @ .., last] => format!("ranks {} and {last}", rest.join(", ")),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_as_people_do() {
        for (ranks, text) in [
            (&[3][..], "rank 3"),
            (&[7, 4, 6, 5], "ranks 4 to 7"),
            (&[2, 1], "ranks 1 and 2"),
            (&[0, 5, 2, 4, 6], "ranks 0, 2 and 4 to 6"),
            (&[0, 2, 4, 6, 8, 10, 12], "7 of 16 ranks"),
        ] {
            assert_eq!(named(ranks, 16), text);
        }
    }
}
