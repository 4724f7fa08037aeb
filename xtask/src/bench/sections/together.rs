//! What working together costs two ranks: one run of two ranks against two independent runs.

use anyhow::{Context, Result};

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit, steady};
use crate::bench::runner::{Runner, STEPS, Side, json_lines, metrics, results, train};

pub const TITLE: &str = "The cost of working together";

const GOAL: f64 = 0.96;

pub fn measure(runner: &Runner) -> Result<Section> {
    let mut together = Side::brigade("together", train("together", [1, 2], 8, 4, STEPS));
    let alone = ["alone-a", "alone-b"].map(|name| (name, train(name, [1, 1], 4, 4, STEPS)));
    let mut two_runs = Samples::default();
    let mut notes = Vec::new();
    for run in 1..=runner.runs {
        together.run(runner, run, &mut notes)?;
        let rate = at_once(runner, &alone)?;
        runner.progress(run, "2 runs of 1 rank at once", Unit::TokensPerSecond.show(rate));
        two_runs.0.push(rate);
    }
    let ratio = together.rates.over(&two_runs);
    let cells = [&together.rates, &two_runs].map(|rates| rates.cell(Unit::TokensPerSecond, ""));
    let row = Row::beside("2 ranks of one thread", cells, ratio, Goal::at_least(ratio, GOAL));
    Ok(Section {
        title: TITLE,
        text: "Two data-parallel ranks of one run, against two runs of one rank that train at the same time on half of \
               the batch each, without any communication; the figure for these is the sum."
            .into(),
        commands: vec![together.line, alone.map(|(_, line)| line).join(" &\n")],
        tables: vec![Table::beside("2 independent runs", vec![row])],
        notes,
    })
}

/// The tokens per second of several runs at the same time, added up.
fn at_once(runner: &Runner, runs: &[(&str, String)]) -> Result<f64> {
    let started: Vec<_> =
        runs.iter().map(|(name, line)| runner.start_training(name, line)).collect::<Result<_>>()?;
    for child in started {
        child.finish()?.succeeded()?;
    }
    let rates = runs.iter().map(|(name, _)| {
        let rates = json_lines::numbers(&metrics(&results(name))?, "tokens_per_second");
        steady(&rates).with_context(|| format!("{name} recorded {} steps; more are needed", rates.len()))
    });
    rates.sum()
}
