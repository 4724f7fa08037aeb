//! The page of many runs: a table that sorts, and curves over each other.

use brigade_report::median;
use serde::Serialize;

use super::templates;
use crate::charts::{Charts, charts};
use crate::error::Result;
use crate::run::Run;

/// What the table and the curves are made of.
#[derive(Serialize)]
pub(crate) struct RunsData {
    name: String,
    runs: Vec<Row>,
    watched: &'static str,
}

/// A run in the table, with its curves.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    name: String,
    state: &'static str,
    why: String,
    step: u64,
    total: Option<u64>,
    loss: Option<f64>,
    validation: Option<f64>,
    rate: Option<f64>,
    mfu: Option<f64>,
    ranks: Option<usize>,
    changed: Option<f64>,
    #[serde(flatten)]
    charts: Charts,
}

/// The numbers of runs. `name`: that of their folder.
pub(crate) fn runs_data(name: &str, runs: Vec<Row>) -> RunsData {
    RunsData { name: name.to_owned(), runs, watched: "" }
}

pub(crate) fn runs_page(name: &str, data: &RunsData) -> Result<String> {
    templates::runs_page(name, data)
}

/// Curves that are worth comparing between runs.
const CURVES: [&str; 3] = ["loss", "throughput", "gradient-norm"];

/// A run in the table; none before its first step.
pub(crate) fn row(run: &Run) -> Option<Row> {
    let last = run.records.last()?;
    let mut charts = charts(&run.records, "targets");
    charts.charts.retain(|chart| CURVES.contains(&chart.id.as_str()));
    Some(Row {
        name: run.name.clone(),
        state: run.state.word(),
        why: run.state.to_string(),
        step: last.step,
        total: run.total_steps(),
        loss: Some(last.loss).filter(|loss| loss.is_finite()),
        validation: run.records.iter().rev().find_map(|record| record.validation_loss),
        rate: median(run.records.iter().map(|record| record.tokens_per_second)),
        mfu: median(run.records.iter().filter_map(|record| record.mfu_percent)),
        ranks: run.ranks(),
        changed: last.time,
        charts,
    })
}
