//! Pipelines whose backward is in two halves, beside 1F1B.

use anyhow::{Context, Result};

use super::pipeline::{STAGES, bubble};
use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit, steady};
use crate::bench::runner::{Runner, STEPS, Side, train};

pub const TITLE: &str = "Pipelines without bubbles";

/// The fastest over 1F1B, with the fewest micro-batches.
const GOAL: f64 = 1.12;
/// The bubble of the schedule that has least, in percent.
const BUBBLE: f64 = 8.0;
const SCHEDULES: [&str; 4] = ["1f1b", "zb-h1", "zb-h2", "zbv"];
const MICRO_BATCHES: [usize; 2] = [4, 8];

/// Runs of one schedule.
struct Case {
    schedule: &'static str,
    trained: Side,
    bubble: Samples,
    peak: Samples,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let mut all =
        MICRO_BATCHES.map(|micro_batches| SCHEDULES.map(|schedule| Case::new(schedule, micro_batches)));
    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        for case in all.iter_mut().flatten() {
            case.run(runner, run, &mut notes)?;
        }
    }
    let tables = MICRO_BATCHES.iter().zip(&all).map(|(micro_batches, cases)| {
        let has_goals = *micro_batches == MICRO_BATCHES[0];
        let columns = ["tokens per second", "ratio", "bubble", "peak"];
        Table::of(&columns, rows(cases, has_goals)).named(format!("{micro_batches} micro-batches"))
    });
    Ok(Section {
        title: TITLE,
        text: format!(
            "The GPT of `configs/gpt-13m.toml` on {STAGES} stages of one thread, micro-batches of 2 sequences, with schedules whose \
             backward is in two halves, and 1F1B. The ratio is that of the tokens per second to 1F1B's; the bubble is that of the section above; the peak \
             is the resident memory of the rank that has most. The first goal is for the fastest schedule, the second for the one with the smallest bubble."
        ),
        commands: all.iter().flatten().map(|case| case.trained.line.clone()).collect(),
        tables: tables.collect(),
        notes,
    })
}

fn rows(cases: &[Case; SCHEDULES.len()], has_goals: bool) -> Vec<Row> {
    let [plain, halved @ ..] = cases;
    let ratio = |case: &Case| case.trained.rates.over(&plain.trained.rates);
    let fastest =
        halved.iter().map(ratio).max_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let least = halved.iter().filter_map(|case| case.bubble.median()).min_by(f64::total_cmp);
    let rows = cases.iter().map(|case| {
        let cells = [
            case.trained.rates.cell(Unit::TokensPerSecond, ""),
            ratio(case).map_or(String::new(), |ratio| format!("{ratio:.3}")),
            case.bubble.cell(Unit::Percent, ""),
            case.peak.cell(Unit::Mebibytes, ""),
        ];
        Row::of(case.schedule, cells, None)
    });
    let goals = [
        ("the fastest", Goal::at_least(fastest.flatten(), GOAL)),
        ("the smallest bubble", Goal::below(least, BUBBLE, &format!("{BUBBLE}%"))),
    ];
    let goals = goals
        .into_iter()
        .filter(|_| has_goals)
        .map(|(name, goal)| Row::of(name, vec![String::new(); 4], goal));
    rows.chain(goals).collect()
}

impl Case {
    fn new(schedule: &'static str, micro_batches: usize) -> Self {
        let name = format!("zero-bubble-{schedule}-{micro_batches}");
        let line = train(&name, [STAGES, 1], 2 * micro_batches, 2, STEPS);
        Self {
            schedule,
            trained: Side::brigade(name, format!("{line} --schedule {schedule}")),
            bubble: Samples::default(),
            peak: Samples::default(),
        }
    }

    fn run(&mut self, runner: &Runner, run: u32, notes: &mut Vec<String>) -> Result<()> {
        let steps = self.trained.run(runner, run, notes)?;
        let missing = || format!("`{}` recorded no bubble or memory", self.trained.line);
        let bubble = steady(&steps.iter().filter_map(bubble).collect::<Vec<_>>()).with_context(missing)?;
        let peak = steps.last().and_then(|step| step["peak_rss_bytes"].as_f64()).with_context(missing)?;
        self.bubble.0.push(bubble);
        self.peak.0.push(peak / f64::from(1 << 20));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_of_the_best() {
        let case = |schedule, rate: f64, bubble: f64| {
            let mut case = Case::new(schedule, 4);
            case.trained.rates = Samples(vec![rate]);
            (case.bubble, case.peak) = (Samples(vec![bubble]), Samples(vec![100.0]));
            case
        };
        assert!(Case::new("zbv", 8).trained.line.contains("--global-batch-size 16 --micro-batch-size 2 "));
        let cases = [
            case("1f1b", 100.0, 25.0),
            case("zb-h1", 111.0, 7.0),
            case("zb-h2", 113.0, 9.0),
            case("zbv", 90.0, 9.0),
        ];
        let rows = rows(&cases, true);
        let met = |row: &Row| row.goal.as_ref().and_then(|goal| goal.met);
        assert_eq!(rows[2].cells, ["113 tokens/s", "1.130", "9.0%", "100.0 MiB"]);
        assert_eq!(
            rows.iter().map(met).collect::<Vec<_>>(),
            [None, None, None, None, Some(true), Some(true)]
        );
    }
}
