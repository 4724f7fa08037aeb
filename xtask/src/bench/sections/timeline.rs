//! What recording a timeline costs.

use anyhow::Result;

use crate::bench::page::{Goal, Row, Section, Table, Unit};
use crate::bench::runner::{Runner, STEPS, Side, train};

pub const TITLE: &str = "Recording a timeline";

/// A run that records has at least this share of the speed of one that does not.
const GOAL: f64 = 0.98;

pub fn measure(runner: &Runner) -> Result<Section> {
    let cases = [("2 ranks", [1, 2], 4), ("2 stages, 4 micro-batches", [2, 1], 2)];
    let mut notes = Vec::new();
    let mut sides = cases.map(|(measure, mesh, micro_batch)| {
        let name = format!("timeline-pp{}", mesh[0]);
        let line = train(&name, mesh, 8, micro_batch, STEPS);
        let recorded = format!("{name}-recorded");
        let recording = train(&recorded, mesh, 8, micro_batch, STEPS);
        let recording = format!("{recording} --profile-steps 1..{STEPS}");
        (measure, Side::brigade(&recorded, recording), Side::brigade(&name, line))
    });
    for run in 1..=runner.runs {
        for (_, recording, plain) in &mut sides {
            recording.run(runner, run, &mut notes)?;
            plain.run(runner, run, &mut notes)?;
        }
    }
    let row = |(measure, recording, plain): &(&str, Side, Side)| {
        let ratio = recording.rates.over(&plain.rates);
        let cells = [recording, plain].map(|side| side.rates.cell(Unit::TokensPerSecond, ""));
        Row::beside(*measure, cells, ratio, Goal::at_least(ratio, GOAL))
    };
    Ok(Section {
        title: TITLE,
        text: "`--profile-steps` over all steps of a run, against the same run without it.".into(),
        commands: sides.iter().map(|(_, recording, _)| recording.line.clone()).collect(),
        tables: vec![Table::beside("not recording", sides.iter().map(row).collect())],
        notes,
    })
}
