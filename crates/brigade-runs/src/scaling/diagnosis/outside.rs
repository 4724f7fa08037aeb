//! Time that passes outside of steps.

use brigade_report::{RunEvent, StepRecord, duration, median};

use super::{Cause, Finding};
use crate::run::Run;

/// Checkpoints that interrupt training.
pub fn checkpoints(run: &Run) -> Option<Finding> {
    let records = run.records_of_last_mesh();
    let saved: Vec<_> = records.iter().filter_map(|record| record.checkpoint).collect();
    let stall: f64 =
        saved.iter().map(|checkpoint| checkpoint.stall_seconds).filter(|stall| stall.is_finite()).sum();
    let whole = training_seconds(records) + stall;
    let every = median(saved.windows(2).map(|pair| pair[1].step.saturating_sub(pair[0].step) as f64));
    let share = stall / whole;
    // As many as leave 1%, at steps after which there may be a checkpoint.
    let together = steps_together(run) as f64;
    let enough = every.map(|every| (every * share / 0.01 / together).ceil() * together);
    let beside = match run.setting("checkpoint.asynchronous") {
        Some("false") => "`checkpoint.asynchronous = true` writes while training continues; ",
        _ => "",
    };
    Finding::new(Cause::Checkpoints, stall, whole, |gain| {
        let every = every.map_or_else(String::new, |every| format!(", one every {every:.0} steps"));
        let enough = enough
            .map_or_else(String::new, |enough| format!("`checkpoint.every = {enough:.0}` would leave 1%; "));
        format!(
            "checkpoints interrupt training for {:.0}% of the time{every}; {enough}{beside}without the interruptions training would be {gain:.0}% faster",
            100.0 * share
        )
    })
}

/// Steps between the points at which all ranks have the same weights.
fn steps_together(run: &Run) -> u64 {
    let number = |name| run.setting(name).and_then(|steps| steps.parse::<u64>().ok()).unwrap_or(1).max(1);
    let is_local = match run.setting("strategy.name") {
        Some("\"local-sgd\"" | "\"diloco\"") => true,
        Some("\"async-server\"") => run.setting("strategy.staleness").is_some_and(|steps| steps != "0"),
        _ => false,
    };
    if is_local { number("strategy.inner_steps") } else { number("train.sync_every") }
}

/// Time between the end of a step and the beginning of the next one that no checkpoint explains. Nobody trains before a run is resumed.
pub fn between_steps(run: &Run) -> Option<Finding> {
    let records = run.records_of_last_mesh();
    // A record may cover several steps; where more are missing, lines cannot be read.
    let covered = |pair: &[StepRecord]| pair[1].step.saturating_sub(pair[0].step);
    let usual = median(records.windows(2).map(|pair| covered(pair) as f64))?;
    let gap = |pair: &[StepRecord]| -> Option<(f64, bool)> {
        let (from, to) = (pair[0].time?, pair[1].time?);
        if covered(pair) as f64 > usual || is_resumed_between(run, from, to) {
            return None;
        }
        let gap = to - from - pair[1].step_seconds;
        Some((gap.max(0.0), pair[0].validation_loss.is_some()))
    };
    let stalls: f64 =
        records.iter().filter_map(|record| record.checkpoint).map(|saved| saved.stall_seconds).sum();
    let gaps: Vec<(f64, bool)> = records.windows(2).filter_map(gap).collect();
    let validating: f64 = gaps.iter().filter(|(_, validates)| *validates).map(|(gap, _)| gap).sum();
    let all: f64 = gaps.iter().map(|(gap, _)| gap).sum();
    let hooks: f64 = records.iter().skip(1).filter_map(|record| record.hook_seconds).sum();
    let lost = all - stalls - hooks;
    let whole = training_seconds(records) + all;
    let what = match validating > all / 2.0 {
        true => "mostly on validation: a larger `train.validate_every`, or fewer `train.validation_samples`",
        false => "on restarts and your own loop; reducing this",
    };
    Finding::new(Cause::OutsideSteps, lost, whole, |gain| {
        format!(
            "{} are spent between steps, {what} would make training up to {gain:.0}% faster",
            duration(lost)
        )
    })
}

/// Whether somebody started the run again between two times, and not its launcher.
fn is_resumed_between(run: &Run, from: f64, to: f64) -> bool {
    run.history.iter().any(|record| {
        matches!(record.event, RunEvent::Started { restart: 0, .. }) && (from..to).contains(&record.time)
    })
}

/// Hooks on rank 0, for whose answer all ranks wait.
pub fn hooks(run: &Run) -> Option<Finding> {
    let records = run.records_of_last_mesh();
    let held: f64 = records.iter().filter_map(|record| record.hook_seconds).sum();
    let each = held / records.len().max(1) as f64;
    let finding = Finding::new(Cause::HostStalls, held, training_seconds(records) + held, |gain| {
        format!(
            "hooks block rank 0 for {} after each step, on average, and all ranks wait for their answer; without them, or with their work on another thread, \
            training would be {gain:.0}% faster",
            duration(each)
        )
    })?;
    Some(finding.at(0))
}

fn training_seconds(records: &[StepRecord]) -> f64 {
    records.iter().map(|record| record.step_seconds).filter(|seconds| seconds.is_finite()).sum()
}
