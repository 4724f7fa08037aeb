//! What it costs two ranks to be one run: against two runs that know nothing of each other.

use anyhow::{Context, Result};

use super::samples::{Samples, Unit};
use super::table::{Goal, Row, Section, Table};
use super::{Bench, STEPS, lines, metrics, results, train};

const GOAL: f64 = 0.96;

pub fn measure(bench: &Bench) -> Result<Section> {
    let together = train("together", 2, 8, 4, STEPS);
    let alone = ["alone-a", "alone-b"].map(|name| (name, train(name, 1, 4, 4, STEPS)));
    let [mut one_run, mut two_runs] = [Samples::default(), Samples::default()];
    for run in 1..=bench.runs {
        let rate = bench.tokens_per_second("together", &together)?;
        bench.progress(run, "2 ranks together", Unit::TokensPerSecond.show(rate));
        one_run.0.push(rate);
        let rate = at_once(bench, &alone)?;
        bench.progress(run, "2 runs of 1 rank at once", Unit::TokensPerSecond.show(rate));
        two_runs.0.push(rate);
    }
    let ratio = one_run.over(&two_runs);
    let row = Row {
        measure: "2 ranks of one thread".into(),
        brigade: one_run.cell(Unit::TokensPerSecond, ""),
        other: two_runs.cell(Unit::TokensPerSecond, ""),
        ratio,
        goal: Goal::at_least(ratio, GOAL),
    };
    Ok(Section {
        title: "The cost of working together",
        text: "Two data-parallel ranks of one run, against two runs of one rank that train at the same time on half of \
               the batch each, without any communication; theirs is the sum."
            .into(),
        commands: vec![together, alone.map(|(_, line)| line).join(" &\n")],
        tables: vec![Table { other: Some("2 independent runs"), rows: vec![row] }],
        notes: Vec::new(),
    })
}

/// The tokens per second of several runs at the same time, added up.
fn at_once(bench: &Bench, runs: &[(&str, String)]) -> Result<f64> {
    let started: Vec<_> =
        runs.iter().map(|(name, line)| bench.start_training(name, line)).collect::<Result<_>>()?;
    for child in started {
        child.finish()?.succeeded()?;
    }
    let rates = runs.iter().map(|(name, _)| {
        let rates = lines::numbers(&metrics(&results(name))?, "tokens_per_second");
        lines::steady(&rates)
            .with_context(|| format!("{name} recorded {} steps; more are needed", rates.len()))
    });
    rates.sum()
}
