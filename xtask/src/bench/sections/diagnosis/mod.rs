//! Injected slowdowns: what is found first, and what curing it brings.

mod cases;
mod interruption;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit};
use crate::bench::runner::{FOLDER, Runner, metrics, results};
use cases::{Case, cases};

pub const TITLE: &str = "What slows a run";

/// The share of records at the beginning that are not counted.
const WARM_UP: usize = 10;

/// What the runs of a case gave.
#[derive(Default)]
struct Found {
    /// What was found first in each run, and on which rank or stage.
    first: Vec<Option<(String, Option<u64>)>>,
    /// By how many percent the diagnosis says that the cure makes training faster.
    said: Samples,
    /// By how many it does.
    measured: Samples,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let cases = cases();
    let mut found: Vec<Found> = cases.iter().map(|_| Found::default()).collect();
    for run in 1..=runner.runs {
        for (case, found) in cases.iter().zip(&mut found) {
            found.add(runner, run, case)?;
        }
    }
    let rows = cases.iter().zip(&found).map(|(case, found)| found.row(case)).collect();
    Ok(Section {
        title: TITLE,
        text: "Real runs of two ranks, each slowed by what its row names: what `brigade report --json` finds first, the speed-up the \
               report predicts, and the speed-up measured in a second run without the cause (or, for stages, bubble and reduction, with the \
               suggested change). Where the report calls its figure an upper bound, the measured one may be lower."
            .into(),
        commands: cases.iter().map(Case::slow_line).collect(),
        tables: vec![Table::of(&["found first", "speed-up predicted", "speed-up measured"], rows)],
        notes: Vec::new(),
    })
}

impl Found {
    fn add(&mut self, runner: &Runner, run: u32, case: &Case) -> Result<()> {
        let mut child = runner.start_training(case.name, &case.slow_line())?;
        if let Some(interruption) = case.interruption {
            interruption.apply(&mut child, &results(case.name))?;
        }
        child.finish()?.succeeded()?;
        let cured = runner.steps(&format!("{}-cured", case.name), &case.cured_line())?;
        let gain = rate(&cured).zip(rate(&metrics(&results(case.name))?)).map(|(cured, slow)| cured / slow);
        let gain = gain.with_context(|| format!("{} recorded too little", case.name))?;
        let first = first_finding(runner, case.name)?;
        let named = first.as_ref().map(|finding| {
            (finding["cause"].as_str().unwrap_or_default().to_owned(), finding["place"].as_u64())
        });
        runner.progress(run, case.name, shown(named.as_ref()));
        if let Some(said) = first.and_then(|finding| finding["gain_percent"].as_f64()) {
            self.said.0.push(said);
        }
        self.first.push(named);
        self.measured.0.push(100.0 * (gain - 1.0));
        Ok(())
    }

    fn row(&self, case: &Case) -> Row {
        let expected = case.cause.map(|(cause, place)| (cause.to_owned(), place));
        let right = self.first.iter().filter(|first| **first == expected).count();
        let wrong = self.first.iter().find(|first| **first != expected);
        let first = wrong.map_or(expected.as_ref(), |wrong| wrong.as_ref());
        let cells = [
            shown(first),
            self.said.cell(Unit::Percent, "–"),
            if case.cause.is_some() { self.measured.cell(Unit::Percent, "–") } else { "–".to_owned() },
        ];
        let text = format!("{}, {right} of {}", shown(expected.as_ref()), self.first.len());
        Row::of(case.done, cells, Some(Goal { text, met: Some(right == self.first.len()) }))
    }
}

/// `slow rank 1`
fn shown(finding: Option<&(String, Option<u64>)>) -> String {
    let Some((cause, place)) = finding else { return "nothing".to_owned() };
    let place = place.map_or(String::new(), |place| format!(", {place}"));
    format!("{}{place}", cause.replace('_', " "))
}

/// The first of what `brigade report` finds in a run; none if it finds nothing.
fn first_finding(runner: &Runner, name: &str) -> Result<Option<Value>> {
    let line = format!("brigade report {FOLDER}/{name} --json");
    let end = runner.start(&format!("{name}-report"), &line)?.finish()?;
    end.succeeded()?;
    let found: Vec<Value> =
        serde_json::from_str(&end.stdout).with_context(|| format!("`{line}` printed no JSON"))?;
    Ok(found.into_iter().next())
}

/// Targets per second of a whole run, what passes between its steps included.
fn rate(records: &[Value]) -> Option<f64> {
    let counted = records.get((records.len() / WARM_UP).max(1)..)?;
    let time = |record: Option<&Value>| record?["time"].as_f64();
    let seconds = time(counted.last())? - time(counted.first())?;
    let targets: f64 = counted.iter().skip(1).filter_map(|record| record["tokens"].as_f64()).sum();
    (seconds > 0.0).then_some(targets / seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_include_what_passes_between_steps() {
        let record = |time: f64| json!({ "time": time, "tokens": 10 });
        assert_eq!(rate(&[record(0.0), record(1.0), record(2.0), record(6.0)]), Some(4.0));
        assert_eq!(rate(&[record(0.0)]), None);
    }

    #[test]
    fn a_row_shows_what_was_found_wrongly() {
        let case = cases().into_iter().find(|case| case.name == "half-a-core").unwrap();
        let first = |cause: &str, place| Some((cause.to_owned(), place));
        let mut found = Found { first: vec![first("slow_rank", Some(1))], ..Found::default() };
        let row = found.row(&case);
        assert_eq!((row.cells[0].as_str(), row.goal.unwrap().met), ("slow rank, 1", Some(true)));
        found.first.push(first("jitter", None));
        let row = found.row(&case);
        assert_eq!(
            (row.cells[0].as_str(), row.goal.unwrap().text.as_str()),
            ("jitter", "slow rank, 1, 1 of 2")
        );
    }

    #[test]
    fn every_cause_has_a_run() {
        let causes: std::collections::BTreeSet<_> = cases().iter().filter_map(|case| case.cause).collect();
        let causes: std::collections::BTreeSet<_> = causes.into_iter().map(|(cause, _)| cause).collect();
        assert_eq!(causes.len(), 11, "{causes:?}");
    }
}
