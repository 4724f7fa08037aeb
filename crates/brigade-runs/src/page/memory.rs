//! The memory of a rank beside what was planned.

use brigade_report::{HumanBytes, MemoryRecord, PlannedMemory};
use serde::Serialize;

use crate::run::Run;

/// One part of a rank's memory.
#[derive(Serialize)]
pub struct MemoryRow {
    name: &'static str,
    measured: Option<String>,
    planned: Option<String>,
    /// Lengths of bars, in percent of the longest.
    measured_percent: f64,
    planned_percent: f64,
}

/// The parts: what was held at the peak, on the rank that held most, and what was planned.
pub fn rows(run: &Run) -> Vec<MemoryRow> {
    let Some(last) = run.records.last() else { return Vec::new() };
    let MemoryRecord {
        parameter_bytes_peak,
        gradient_bytes_peak,
        optimizer_bytes_peak,
        activation_bytes_peak,
        ..
    } = last.memory;
    let planned = run.planned;
    let plan = |bytes: fn(&PlannedMemory) -> u64| planned.as_ref().map(bytes);
    let parts = [
        ("parameters", Some(parameter_bytes_peak), plan(|plan| plan.parameter_bytes)),
        ("gradients", Some(gradient_bytes_peak), plan(|plan| plan.gradient_bytes)),
        ("optimizer", Some(optimizer_bytes_peak), plan(|plan| plan.optimizer_bytes)),
        ("activations between blocks", Some(activation_bytes_peak), plan(|plan| plan.activation_bytes)),
        (
            "activations inside blocks",
            None,
            plan(|plan| plan.saved_activation_bytes).filter(|bytes| *bytes > 0),
        ),
    ];
    let known = parts.iter().filter(|(_, measured, planned)| measured.is_some() || planned.is_some());
    let longest = parts.iter().flat_map(|(_, measured, planned)| [measured, planned]).flatten().max();
    let percent =
        |bytes: Option<u64>| 100.0 * bytes.unwrap_or(0) as f64 / longest.copied().unwrap_or(0).max(1) as f64;
    let text = |bytes: Option<u64>| bytes.map(|bytes| HumanBytes(bytes).to_string());
    let row = |(name, measured, planned): &(&'static str, Option<u64>, Option<u64>)| MemoryRow {
        name,
        measured: text(*measured),
        planned: text(*planned),
        measured_percent: percent(*measured),
        planned_percent: percent(*planned),
    };
    known.map(row).collect()
}
