//! Schedules as text.

use std::fmt::Write;

use crate::schedule::simulate::{Sends, simulate};
use crate::schedule::{Action, Pipeline, ScheduleError, formula};

/// Blocks of rows that are shown of a long table, from its beginning and from its end.
const SHOWN: (usize, usize) = (3, 2);

impl Pipeline {
    /// One line: the schedule, its numbers, and the share of idle time as measured and by formula.
    ///
    /// # Errors
    /// Where the ratio is not from 0.001 to 1000.
    pub fn summary(&self, backward_ratio: f64) -> Result<String, ScheduleError> {
        let Self { stages, chunks, micro_batches, .. } = *self;
        let count = |number: usize, one: &str, many: &str| match number {
            1 => format!("1 {one}"),
            _ => format!("{number} {many}"),
        };
        let name = match self.kind() {
            Some(kind) => kind.name(),
            None if self.trains() => "own schedule",
            None => "forward only",
        };
        let kind = self.kind().unwrap_or_default();
        let by_formula = formula::bubble_fraction(kind, stages, chunks, micro_batches);
        let halves =
            if kind.splits_backward() && backward_ratio != 2.0 { " at --backward-ratio 2" } else { "" };
        Ok(format!(
            "{name}: {} of {}, {}, bubble {:.1}% (by formula {:.1}%{halves})",
            count(stages, "stage", "stages"),
            count(chunks, "chunk", "chunks"),
            count(micro_batches, "micro-batch", "micro-batches"),
            100.0 * self.bubble_fraction(backward_ratio)?,
            100.0 * by_formula,
        ))
    }

    /// What each rank computes, one row a rank and one column an action however long that takes: `F2` is
    /// the forward of micro-batch 2, `B2` its backward (`I2` and `W2` its halves), `F2.1` the forward through chunk 1 where there
    /// are several, `.` an idle slot.
    ///
    /// Rows that are longer than `width` characters continue below. Of very long ones the middle is left out.
    ///
    /// # Errors
    /// [`ScheduleError::Fault`] where the public numbers were changed so that they no longer go with the
    /// actions.
    pub fn table(&self, width: usize) -> Result<String, ScheduleError> {
        let timeline = simulate(self, Sends::Buffered, |_, _| 1.0)?;
        let slots = timeline.length() as usize;
        let mut rows = vec![vec![".".to_owned(); slots]; self.stages];
        for (row, spans) in rows.iter_mut().zip(&timeline.ranks) {
            for span in spans {
                row[span.start as usize] = span.action.label(self.chunks);
            }
        }
        let name = |rank: usize| format!("rank {rank}");
        let names = name(self.stages.saturating_sub(1)).len() + 1;
        let last_slot = slots.saturating_sub(1).to_string().len();
        let cell = 1 + rows.iter().flatten().map(String::len).fold(last_slot, usize::max);
        let columns = (width.saturating_sub(names) / cell).max(1);

        let blocks = slots.div_ceil(columns);
        let left_out = if blocks > SHOWN.0 + SHOWN.1 { SHOWN.0..blocks - SHOWN.1 } else { 0..0 };
        let numbers = if self.chunks > 1 { "micro-batch.chunk" } else { "micro-batch" };
        let halves = self.actions.iter().flatten().any(|action| matches!(action, Action::BackwardWeights(_)));
        let backward = if halves { "I and W the halves of a backward" } else { "B backward" };
        let mut text = format!("one column an action: F forward, {backward}, with {numbers}\n");
        for block in (0..blocks).filter(|block| !left_out.contains(block)) {
            let range = block * columns..((block + 1) * columns).min(slots);
            text.push('\n');
            if block == left_out.end && !left_out.is_empty() {
                let (from, to) = (left_out.start * columns, left_out.end * columns - 1);
                let _ = writeln!(text, "(slots {from} to {to} are left out)\n");
            }
            line(&mut text, "slot", names, range.clone().map(|slot| slot.to_string()), cell);
            for (rank, row) in rows.iter().enumerate() {
                line(&mut text, &name(rank), names, row[range.clone()].iter(), cell);
            }
        }
        Ok(text)
    }

    /// One line: the micro-batches, each through one chunk, that each rank keeps for their backward at
    /// once, at most; and one of those among them that wait for its second half, where backwards have two.
    pub fn peaks(&self) -> String {
        let mut text = "peak activations (micro-batches x chunks), from rank 0:".to_owned();
        for rank in 0..self.stages {
            let _ = write!(text, " {}", self.peak_in_flight(rank));
        }
        if (0..self.stages).any(|rank| self.peak_deferred(rank) > 0) {
            text.push_str("\nof which wait for their weights' gradients:");
            for rank in 0..self.stages {
                let _ = write!(text, " {}", self.peak_deferred(rank));
            }
        }
        text
    }

    /// Every action of every rank, one a line, as `micro-batch.chunk`.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for (rank, actions) in self.actions.iter().enumerate() {
            let _ = writeln!(text, "rank {rank}");
            for action in actions {
                let _ = writeln!(text, "  {action}");
            }
        }
        text
    }
}

/// One row. Own code, as no library for tables continues long rows below and leaves out their middle.
fn line(text: &mut String, name: &str, names: usize, cells: impl Iterator<Item: AsRef<str>>, cell: usize) {
    let mut line = format!("{name:names$}");
    for content in cells {
        let _ = write!(line, "{:cell$}", content.as_ref());
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
