//! The heat map of ranks and steps, in which a slow rank is a line.

use brigade_report::{RankSeconds, StepRecord, median};
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
    let recorded: Vec<Recorded<'_>> = run.records.iter().filter_map(Recorded::of).collect();
    let ranks = recorded.iter().map(|of| of.seconds.step.len()).max().filter(|ranks| *ranks > 1)?;
    let columns = MAX_COLUMNS.min(MAX_CELLS / ranks).max(1);
    let per_column = recorded.len().div_ceil(columns);
    let groups: Vec<&[Recorded<'_>]> = recorded.chunks(per_column).collect();
    let measure =
        |name, title, unit, (low, centre, high), of: fn(&Recorded<'_>, usize) -> Option<f64>| Measure {
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
            |of, rank| Some(own(of.seconds, rank)? / of.median),
        ),
        measure(
            "waiting for ranks",
            "The share of a step in which a rank waited for others. The rank that all others wait for waits \
            least.",
            "percent",
            (0.0, None, 60.0),
            |of, rank| share(of.seconds, *of.seconds.comm_wait.get(rank)?, rank),
        ),
        measure(
            "waiting for data",
            "The share of a step in which a rank waited for its data.",
            "percent",
            (0.0, None, 30.0),
            |of, rank| share(of.seconds, *of.seconds.data_wait.get(rank)?, rank),
        ),
        measure(
            "neither",
            "The share of a step in which a rank neither computed nor waited: hooks, snapshots, or no processor to run on.",
            "percent",
            (0.0, None, 30.0),
            |of, rank| {
                let rest = own(of.seconds, rank)?
                    - of.seconds.compute.get(rank)?
                    - of.seconds.data_wait.get(rank)?;
                share(of.seconds, rest.max(0.0), rank)
            },
        ),
    ];
    let row = |rank| match run.stage(rank) {
        Some(stage) => format!("{rank} · stage {stage}"),
        None => format!("rank {rank}"),
    };
    Some(Heat {
        steps: groups.iter().map(|group| group[0].step).collect(),
        rows: (0..ranks).map(row).collect(),
        measures,
    })
}

/// The times of ranks in a step.
struct Recorded<'a> {
    step: u64,
    seconds: &'a RankSeconds,
    /// Of the ranks' [own times](own).
    median: f64,
}

impl<'a> Recorded<'a> {
    fn of(record: &'a StepRecord) -> Option<Self> {
        let seconds = record.rank_seconds.as_ref()?;
        let own = (0..seconds.step.len()).filter_map(|rank| own(seconds, rank));
        Some(Self { step: record.step, seconds, median: median(own).unwrap_or(f64::NAN) })
    }
}

/// The mean of a group of steps, with three digits after the point.
fn mean(group: &[Recorded<'_>], rank: usize, number: fn(&Recorded<'_>, usize) -> Option<f64>) -> Option<f64> {
    let known: Vec<f64> =
        group.iter().filter_map(|of| number(of, rank)).filter(|value| value.is_finite()).collect();
    (!known.is_empty()).then(|| (1e3 * known.iter().sum::<f64>() / known.len() as f64).round() / 1e3)
}

fn share(seconds: &RankSeconds, part: f64, rank: usize) -> Option<f64> {
    let whole = *seconds.step.get(rank)?;
    Some(if whole > 0.0 { 100.0 * part / whole } else { 0.0 })
}

/// A rank's time without waiting for others.
fn own(seconds: &RankSeconds, rank: usize) -> Option<f64> {
    Some(seconds.step.get(rank)? - seconds.comm_wait.get(rank)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunState;

    #[test]
    fn own_times_are_over_the_median_of_their_own_step() {
        let record = |step, own: &[f64]| {
            let waits: Vec<f64> = own.iter().map(|own| 5.0 - own).collect();
            let (ranks, zeros) = (own.len(), vec![0.0; own.len()]);
            let seconds = RankSeconds {
                step: vec![5.0; ranks],
                compute: own.to_vec(),
                comm_wait: waits,
                data_wait: zeros,
            };
            StepRecord { step, rank_seconds: Some(seconds), ..StepRecord::default() }
        };
        let mut run = Run::of_history("a", "", None, RunState::Running);
        run.records = vec![record(1, &[1.0, 2.0, 4.0]), record(2, &[3.0, 1.0]), record(3, &[])];
        let heat = heat(&run).unwrap();
        let own = &heat.measures[0].values;
        let [first, second] = [[Some(0.5), Some(1.0), Some(2.0)], [Some(1.5), Some(0.5), None]];
        assert_eq!(own[..2], [first, second]);
        assert_eq!((heat.steps, &own[2]), (vec![1, 2, 3], &vec![None; 3]));
    }
}
