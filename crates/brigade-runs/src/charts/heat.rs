//! The heat map of ranks and steps, in which a slow rank is a line.

use brigade_report::{RankSeconds, StepRecord};
use serde::Serialize;

use crate::run::Run;

/// More columns than a screen has pixels to show.
const MAX_COLUMNS: usize = 600;

/// More cells than a page should carry for each measure.
const MAX_CELLS: usize = 120_000;

/// The times of ranks, step by step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Heat {
    /// The first step of each column.
    pub steps: Vec<u64>,
    /// The name of each rank.
    pub rows: Vec<String>,
    /// What can be shown.
    pub measures: Vec<Measure>,
}

/// One number of each rank and step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measure {
    /// In a word.
    pub name: &'static str,
    /// In a sentence.
    pub title: &'static str,
    /// How its numbers are written.
    pub unit: &'static str,
    /// The numbers that have the first and last colours.
    pub low: f64,
    /// The number that is neither, for measures that go either way.
    pub centre: Option<f64>,
    /// As `low`.
    pub high: f64,
    /// Column by column, the number of each rank.
    pub values: Vec<Vec<Option<f64>>>,
}

/// The heat map of a run, if ranks were recorded one by one and there are several.
pub fn heat(run: &Run) -> Option<Heat> {
    let recorded = |record: &'_ StepRecord| -> Option<(u64, RankSeconds)> {
        Some((record.step, record.rank_seconds.clone()?))
    };
    let recorded: Vec<(u64, RankSeconds)> = run.records.iter().filter_map(recorded).collect();
    let ranks = recorded.iter().map(|(_, seconds)| seconds.step.len()).max().filter(|ranks| *ranks > 1)?;
    let columns = MAX_COLUMNS.min(MAX_CELLS / ranks).max(1);
    let per_column = recorded.len().div_ceil(columns);
    let groups: Vec<&[(u64, RankSeconds)]> = recorded.chunks(per_column).collect();
    let measure =
        |name, title, unit, (low, centre, high), of: fn(&RankSeconds, usize) -> Option<f64>| Measure {
            name,
            title,
            unit,
            low,
            centre,
            high,
            values: groups
                .iter()
                .map(|group| (0..ranks).map(|rank| mean(group, rank, of)).collect())
                .collect(),
        };
    let measures = vec![
        measure(
            "own time",
            "A rank's time without waiting for others, divided by the median of all ranks in that step. A row that stays above 1 is \
            a slow rank, or a stage with more work.",
            "number",
            (0.7, Some(1.0), 1.5),
            own_over_median,
        ),
        measure(
            "waiting for ranks",
            "The share of a step in which a rank waited for others. The rank that all others wait for waits \
            least.",
            "percent",
            (0.0, None, 60.0),
            |seconds, rank| share(seconds, seconds.comm_wait.get(rank)?, rank),
        ),
        measure(
            "waiting for data",
            "The share of a step in which a rank waited for its data.",
            "percent",
            (0.0, None, 30.0),
            |seconds, rank| share(seconds, seconds.data_wait.get(rank)?, rank),
        ),
        measure(
            "neither",
            "The share of a step in which a rank neither computed nor waited: hooks, snapshots, or no processor to run on.",
            "percent",
            (0.0, None, 30.0),
            |seconds, rank| {
                let own = seconds.step.get(rank)? - seconds.compute.get(rank)?;
                let rest = own - seconds.data_wait.get(rank)? - seconds.comm_wait.get(rank)?;
                share(seconds, &rest.max(0.0), rank)
            },
        ),
    ];
    let row = |rank| match run.stage(rank) {
        Some(stage) => format!("{rank} · stage {stage}"),
        None => format!("rank {rank}"),
    };
    Some(Heat {
        steps: groups.iter().map(|group| group[0].0).collect(),
        rows: (0..ranks).map(row).collect(),
        measures,
    })
}

/// The mean of a group of steps, with three digits after the point.
fn mean(
    group: &[(u64, RankSeconds)],
    rank: usize,
    of: fn(&RankSeconds, usize) -> Option<f64>,
) -> Option<f64> {
    let known: Vec<f64> =
        group.iter().filter_map(|(_, seconds)| of(seconds, rank)).filter(|value| value.is_finite()).collect();
    (!known.is_empty()).then(|| (1e3 * known.iter().sum::<f64>() / known.len() as f64).round() / 1e3)
}

fn share(seconds: &RankSeconds, part: &f64, rank: usize) -> Option<f64> {
    let whole = seconds.step.get(rank)?;
    Some(if *whole > 0.0 { 100.0 * part / whole } else { 0.0 })
}

fn own_over_median(seconds: &RankSeconds, rank: usize) -> Option<f64> {
    let own: Vec<f64> = seconds.step.iter().zip(&seconds.comm_wait).map(|(step, wait)| step - wait).collect();
    let mut sorted = own.clone();
    sorted.sort_by(f64::total_cmp);
    let middle = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
    Some(own.get(rank)? / middle)
}
