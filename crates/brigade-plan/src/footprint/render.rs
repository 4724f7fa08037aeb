//! A footprint as text.

use std::ops::Range;

use crate::columns::{aligned, bytes, counted};

use super::{Amount, Footprint, MemoryFootprint, Sent, StageFootprint};

impl Footprint {
    /// A few lines per stage: its blocks; the memory of a rank, by formula or between steps, and how much more it is at the peak; and
    /// what a rank sends in a step. The lines of all stages have the same columns.
    ///
    /// ```
    /// use brigade_plan::{Configuration, Footprint, UnitSize};
    /// let units = vec![UnitSize::trained(1 << 18, vec![0])];
    /// let configuration = Configuration { units, split: vec![1], dp: 2, ..Configuration::default() };
    /// let text = Footprint::of(&configuration)?.render();
    /// assert!(text.contains("all_reduce 1.0 MiB in 1 call"), "{text}");
    /// # Ok::<(), brigade_plan::FootprintError>(())
    /// ```
    pub fn render(&self) -> String {
        let memory = aligned(self.stages.iter().map(|stage| memory_cells(&stage.memory)).collect());
        let sends = aligned(self.stages.iter().map(sends_cells).collect());
        let mut text = String::new();
        for (number, stage) in self.stages.iter().enumerate() {
            text.push_str(&format!("stage {number}: {}\n", blocks(stage)));
            text.push_str(&format!("  memory  {}\n  sends   {}\n", memory[number], sends[number]));
        }
        text
    }
}

/// The blocks of all chunks, counted from 0.
fn blocks(stage: &StageFootprint) -> String {
    let run = |blocks: &Range<usize>| match blocks.len() {
        1 => blocks.start.to_string(),
        _ => format!("{}-{}", blocks.start, blocks.end.saturating_sub(1)),
    };
    let runs: Vec<_> = stage.blocks.iter().map(run).collect();
    let one = stage.blocks.iter().map(Range::len).sum::<usize>() == 1;
    format!("{} {}", if one { "block" } else { "blocks" }, runs.join(", "))
}

fn memory_cells(memory: &MemoryFootprint) -> Vec<String> {
    let MemoryFootprint { parameters, gradients, optimizer, boundary_activations, saved_activations } =
        memory;
    let besides = |extra: u64, what: &str| match extra {
        0 => String::new(),
        _ => format!(" (+ {} {what})", bytes(extra)),
    };
    let gathered = besides(parameters.peak - parameters.live, "gathered");
    let working_set = besides(gradients.working_set(), "working set");
    let known = |amount: &Amount| if amount.peak > 0 { bytes(amount.peak) } else { "unknown".into() };
    vec![
        format!("parameters {}{gathered}", bytes(parameters.live)),
        format!("gradients {}{working_set}", bytes(gradients.formula)),
        format!("optimizer {}", bytes(optimizer.peak)),
        format!("boundary activations {}", known(boundary_activations)),
        format!("saved activations {}", known(saved_activations)),
        format!("together {}", bytes(memory.peak())),
    ]
}

fn sends_cells(stage: &StageFootprint) -> Vec<String> {
    let cell = |(name, sent): (&str, Sent)| {
        let sent_bytes = match (sent.bytes, sent.unknown_calls) {
            (_, 0) => bytes(sent.bytes),
            (0, _) => "unknown".into(),
            (_, _) => format!("{} and activations, unknown,", bytes(sent.bytes)),
        };
        format!("{name} {sent_bytes} in {}", counted(sent.calls as usize, "call"))
    };
    let made = stage.traffic.by_operation().into_iter().filter(|(_, sent)| sent.calls > 0);
    let mut cells: Vec<_> = made.map(cell).collect();
    if cells.is_empty() {
        cells.push("nothing".into());
    }
    cells
}
