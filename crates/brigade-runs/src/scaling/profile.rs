//! The usual step of a run.

use brigade_report::{RankSeconds, StepRecord, median};

use super::nccl::{NOT_TOLD_APART, waits_in_compute};
use super::pipeline::RunPipeline;
use super::spent::Spent;
use crate::run::Run;

/// The shares of steps at the beginning that are not usual: buffers are allocated, caches are cold.
const WARM_UP: usize = 10;

/// The losses and norms of a step, which every rank tells the others when it has its own.
pub const SCALARS: &str = "all_gather_scalars";

/// The usual step of a run, in seconds: medians over its steps in its last mesh but for the first ones. What takes long in some steps alone is in no
/// median, but in [`Spent`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// How many ranks.
    pub ranks: usize,
    /// How many steps were looked at.
    pub steps: usize,
    /// Targets of a step.
    pub tokens: f64,
    /// The step on the slowest rank.
    pub step: f64,
    /// Forward, backward and optimizer on the rank in the middle.
    pub compute: f64,
    /// Whether that, of each rank, includes what its GPU waits for other ranks, in collectives of NCCL.
    pub waits_in_compute: bool,
    /// What the rank in the middle would have waited for sums and parameters had all ranks come at once, without what a pipeline waits, also for the last of its stages at
    /// the step's end: the least share of its step that any rank waited, of the slowest rank's step.
    pub communication: f64,
    /// What was waited for, each with its share of it: that of the means.
    pub communication_shares: Vec<(String, f64)>,
    /// Collectives that nothing waited for, where the run recorded it.
    pub hidden: Option<f64>,
    /// Idle because of the pipeline.
    pub bubble: f64,
    /// What each rank took to compute.
    pub compute_of: Vec<f64>,
    /// What each rank waited for data.
    pub data_wait_of: Vec<f64>,
    /// What each rank neither computed nor waited.
    pub rest_of: Vec<f64>,
    /// The step, with what takes long in some steps alone.
    pub whole_step: Spent,
    /// `communication`, likewise.
    pub communication_spent: Spent,
    /// What each rank waited for data, likewise.
    pub data_wait_spent: Vec<Spent>,
    /// What each rank neither computed nor waited, likewise.
    pub rest_spent: Vec<Spent>,
    /// How much longer than the rank in the middle of those with the same work the last one took in each step, by chance: the mean, without what one
    /// rank takes longer in most of them.
    pub jitter: f64,
    /// The stage of each rank.
    pub stages: Vec<usize>,
    /// Ranks with the same number do the same work: those of a stage, but for servers, which have one of their own.
    pub work: Vec<usize>,
}

impl Profile {
    /// Of a run.
    pub fn of(run: &Run) -> Self {
        let records = usual(run.records_of_last_mesh());
        let middle = |number: &dyn Fn(&StepRecord) -> f64| median(records.iter().map(number)).unwrap_or(0.0);
        let ranks = run.ranks().unwrap_or(1);
        let stages: Vec<usize> = (0..ranks).map(|rank| run.stage(rank).unwrap_or(0)).collect();
        let workers = ranks.saturating_sub(run.servers());
        let of_servers = stages.iter().max().map_or(0, |last| last + 1);
        let work: Vec<usize> = (stages.iter().enumerate())
            .map(|(rank, stage)| if rank < workers { *stage } else { of_servers })
            .collect();
        let seconds: Vec<&RankSeconds> = records
            .iter()
            .filter_map(|record| record.rank_seconds.as_ref())
            .filter(|all| all.step.len() == ranks)
            .collect();
        let of = |number: &dyn Fn(&RankSeconds, usize) -> f64| -> Vec<f64> {
            let rank = |rank| median(seconds.iter().map(|all| number(all, rank))).unwrap_or(0.0);
            (0..ranks).map(rank).collect()
        };
        let step = middle(&|record| record.step_seconds);
        let spent_of = |number: &dyn Fn(&RankSeconds, usize) -> f64| -> Vec<Spent> {
            (0..ranks).map(|rank| Spent::of(seconds.iter().map(|all| number(all, rank)), step)).collect()
        };
        let rest = |all: &RankSeconds, rank: usize| {
            (all.step[rank] - all.compute[rank] - all.data_wait[rank] - all.comm_wait[rank]).max(0.0)
        };
        let compute_of = match seconds.is_empty() {
            true => vec![
                middle(&|record| record.forward_seconds
                    + record.backward_seconds
                    + record.optimizer_seconds);
                ranks
            ],
            false => of(&|all, rank| all.compute[rank]),
        };
        let least = |all: &&RankSeconds| {
            let last = all.step.iter().copied().fold(0.0, f64::max);
            let shares = all.comm_wait.iter().zip(&all.step).map(|(waited, step)| waited / step);
            last * shares.fold(f64::INFINITY, f64::min)
        };
        let filling = RunPipeline::of(run).map_or(0.0, |pipeline| filling(&pipeline, &compute_of, &stages));
        let waits = |record: &StepRecord| -> f64 {
            without_pipeline(record, filling).map(|(_, seconds)| seconds).sum()
        };
        let waited = Spent::of(records.iter().map(waits), step);
        let least = match seconds.is_empty() {
            true => waited,
            false => Spent::of(seconds.iter().map(least), step),
        };
        let bubbles = Spent::of(records.iter().map(|record| bubble(record, filling)), step);
        let is_pipeline = stages.iter().any(|stage| *stage > 0);
        let communication_spent = match is_pipeline && waited.mean < least.mean + bubbles.mean {
            true => waited,
            false if is_pipeline => {
                Spent { mean: least.mean + bubbles.mean, middle: least.middle + bubbles.middle, ..least }
            }
            false => least,
        };
        Self {
            ranks,
            steps: records.len(),
            tokens: middle(&|record| record.tokens as f64),
            step,
            compute: median(compute_of.iter().copied()).unwrap_or(0.0),
            waits_in_compute: waits_in_compute(run),
            communication_shares: shares(records, filling),
            communication: communication_spent.middle,
            hidden: median(records.iter().filter_map(|record| record.comm_hidden_seconds)),
            bubble: bubbles.middle,
            data_wait_of: match seconds.is_empty() {
                true => vec![middle(&|record| record.data_wait_seconds); ranks],
                false => of(&|all, rank| all.data_wait[rank]),
            },
            rest_of: of(&rest),
            whole_step: Spent::of(records.iter().map(|record| record.step_seconds), step),
            communication_spent,
            data_wait_spent: match seconds.is_empty() {
                true => vec![Spent::of(records.iter().map(|record| record.data_wait_seconds), step); ranks],
                false => spent_of(&|all, rank| all.data_wait[rank]),
            },
            rest_spent: spent_of(&rest),
            jitter: jitter(&seconds, &work, step),
            compute_of,
            stages,
            work,
        }
    }

    /// That computing and waiting are not told apart, where they are not; without a full stop.
    pub(super) fn not_told_apart(&self) -> Option<&'static str> {
        self.waits_in_compute.then_some(NOT_TOLD_APART)
    }

    /// Targets per second.
    pub fn rate(&self) -> f64 {
        self.tokens / self.step
    }

    /// What the ranks of a stage took to compute: the middle of them.
    pub fn stage_compute(&self, stage: usize) -> f64 {
        stage_compute(stage, &self.compute_of, &self.stages)
    }

    /// How many stages there are.
    pub fn stage_count(&self) -> usize {
        self.stages.iter().max().map_or(1, |last| last + 1)
    }

    /// By how much the middle of the slowest stage is above the mean of all stages.
    pub fn imbalance(&self) -> f64 {
        let stages: Vec<f64> = (0..self.stage_count()).map(|stage| self.stage_compute(stage)).collect();
        let most = stages.iter().copied().fold(0.0, f64::max);
        most - stages.iter().sum::<f64>() / stages.len() as f64
    }
}

/// The steps that are not the first ones: a tenth of them, and at least one where there are several.
fn usual(records: &[StepRecord]) -> &[StepRecord] {
    let first = match records.len() {
        0 | 1 => 0,
        steps => (steps / WARM_UP).max(1),
    };
    &records[first..]
}

/// Idle because of the pipeline: waits for neighbouring stages, and for the last of them as far as filling and draining explain it.
fn bubble(record: &StepRecord, filling: f64) -> f64 {
    let stages = record.comm_wait_seconds_by.get("pipeline").copied().unwrap_or(0.0);
    let (idle, most) = (record.bubble_seconds, stages.max(filling));
    // A number that is none stays so.
    if idle > most { most } else { idle }
}

fn stage_compute(stage: usize, compute_of: &[f64], stages: &[usize]) -> f64 {
    let of_stage = stages.iter().zip(compute_of).filter(|(of, _)| **of == stage);
    median(of_stage.map(|(_, seconds)| *seconds)).unwrap_or(0.0)
}

/// How long a rank is idle in a step, on average, while the pipeline fills and drains, and for the slowest stage.
fn filling(pipeline: &RunPipeline, compute_of: &[f64], stages: &[usize]) -> f64 {
    let each: Vec<f64> = (0..pipeline.stages).map(|stage| stage_compute(stage, compute_of, stages)).collect();
    let most = each.iter().copied().fold(0.0, f64::max);
    most * (1.0 + pipeline.idle_over_busy(1)) - each.iter().sum::<f64>() / each.len() as f64
}

/// Waits for other ranks but those for a neighbouring stage. A stage that is done with its last micro-batch waits for the others with the step's losses and norms: that is the
/// pipeline's, too, as far as it takes `filling` seconds to fill and drain.
fn without_pipeline(record: &StepRecord, filling: f64) -> impl Iterator<Item = (&String, f64)> {
    let stages = record.comm_wait_seconds_by.get("pipeline").copied().unwrap_or(0.0);
    let most = (bubble(record, filling) - stages).max(0.0);
    let waits = record.comm_wait_seconds_by.iter().map(move |(what, seconds)| match what.as_str() {
        SCALARS => (what, (seconds - most).max(0.0)),
        _ => (what, *seconds),
    });
    waits.filter(|(what, _)| *what != "pipeline")
}

/// What was waited for, each with its share of the means over the ranks.
fn shares(records: &[StepRecord], filling: f64) -> Vec<(String, f64)> {
    let mut sums = std::collections::BTreeMap::<&String, f64>::new();
    for (what, seconds) in records.iter().flat_map(|record| without_pipeline(record, filling)) {
        *sums.entry(what).or_default() += seconds;
    }
    let all: f64 = sums.values().sum();
    let share = |(what, seconds): (&String, f64)| (what.clone(), if all > 0.0 { seconds / all } else { 0.0 });
    let mut shares: Vec<_> = sums.into_iter().map(share).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}

/// How much longer than it usually does the last rank of those with the same work computed, beyond the rank in the middle: the mean over the later half of
/// the steps. A rank usually takes what it takes at most in a quarter of them, so that one which is always slow is no jitter, and one
/// that is often late is. Steps in which one was late by chance do not count.
fn jitter(seconds: &[&RankSeconds], work: &[usize], step: f64) -> f64 {
    let seconds = &seconds[seconds.len() / 2..];
    if seconds.is_empty() || work.len() < 2 {
        return 0.0;
    }
    let usual = |rank: usize| {
        let mut all: Vec<f64> = seconds.iter().map(|all| all.compute[rank]).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 4]
    };
    let usual: Vec<f64> = (0..work.len()).map(usual).collect();
    let kinds = work.iter().max().map_or(1, |last| last + 1);
    let last = |all: &&RankSeconds| {
        let of_kind = |kind| {
            let over = (0..usual.len())
                .filter(|rank| work[*rank] == kind)
                .map(|rank| all.compute[rank] - usual[rank]);
            let mut over: Vec<f64> = over.collect();
            over.sort_by(f64::total_cmp);
            // Of two ranks the first.
            over.last()
                .zip(over.get(over.len().saturating_sub(1) / 2))
                .map_or(0.0, |(last, middle)| last - middle)
        };
        (0..kinds).map(of_kind).fold(0.0, f64::max)
    };
    Spent::of(seconds.iter().map(last), step).mean
}
