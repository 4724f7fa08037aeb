//! A run in a few figures.

use brigade_report::{HumanCount, StepRecord, duration, median};
use serde::Serialize;

use super::PageData;
use crate::run::{Run, RunState};
use crate::scaling::{not_told_apart, sentence};

/// A figure with its name.
#[derive(Serialize)]
pub struct Figure {
    name: String,
    value: String,
}

/// The figures at the top of the page.
pub fn figures(run: &Run) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: &str, value: String| figures.push(Figure { name: name.to_owned(), value });
    let Some(last) = run.records.last() else { return figures };
    let column = |number: fn(&StepRecord) -> Option<f64>| -> Option<f64> {
        median(run.records.iter().filter_map(number))
    };
    match run.total_steps() {
        Some(total) => add("steps", format!("{} of {}", HumanCount(last.step), HumanCount(total))),
        None => add("steps", HumanCount(last.step).to_string()),
    }
    add("loss", format!("{:.4}", last.loss));
    if let Some(loss) = run.records.iter().rev().find_map(|record| record.validation_loss) {
        add("validation loss", format!("{loss:.4}"));
    }
    if let Some(rate) = column(|record| Some(record.tokens_per_second)) {
        add(&format!("{}/s (median)", run.unit()), HumanCount(rate.round() as u64).to_string());
    }
    if let Some(mfu) = column(|record| record.mfu_percent) {
        add("MFU (median)", format!("{mfu:.1}%"));
    }
    if let Some(seconds) = column(|record| Some(record.step_seconds)) {
        add("step (median)", duration(seconds));
    }
    let share = |part: fn(&StepRecord) -> f64| {
        let of = |number: fn(&StepRecord) -> f64| run.records.iter().map(number).sum::<f64>();
        format!("{:.1}%", 100.0 * of(part) / of(|record| record.step_seconds))
    };
    add("waiting for ranks", share(|record| record.comm_wait_seconds));
    if run.records.iter().any(|record| record.comm_hidden_seconds.is_some()) {
        add("hidden communication", share(|record| record.comm_hidden_seconds.unwrap_or(0.0)));
    }
    add("waiting for data", share(|record| record.data_wait_seconds));
    if run.records.iter().any(|record| record.bubble_seconds > 0.0) {
        add("pipeline bubble", share(|record| record.bubble_seconds));
    }
    add("peak memory", format!("{:.2} GiB", last.peak_memory_gib()));
    if let Some(ranks) = run.ranks() {
        let axes: Vec<String> = run.mesh().iter().map(|(axis, size)| format!("{axis} {size}")).collect();
        add("ranks", format!("{ranks} ({})", axes.join(" × ")));
    }
    if let Some((begin, end)) = run.records.first().and_then(|first| first.time).zip(last.time) {
        add("time", duration(end - begin));
    }
    if let Some(seconds) = run.seconds_left().filter(|_| run.state == RunState::Running) {
        add("time left", duration(seconds));
    }
    figures
}

/// What a reader should know before trusting the charts.
pub fn notes(run: &Run, data: &PageData) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(run.unreadable_note().map(|note| note + "."));
    notes.extend(run.last_mesh_note().map(|note| format!("The diagnosis covers {note}.")));
    notes.extend(not_told_apart(run).map(|note| format!("{}.", sentence(note))));
    if data.charts.steps_per_point > 1 {
        notes.push(format!(
            "Two neighbouring points stand for {} steps: the lowest and the highest value of them, or their mean where parts are stacked.",
            data.charts.steps_per_point
        ));
    }
    if run.history.is_empty() {
        notes.push(
            "The run was written by a version without a history: starts and failures are not shown."
                .to_owned(),
        );
    }
    notes
}
