//! Progress of the steps of a run.

use std::io::Write;

use indicatif::ProgressBar;

use super::{
    line::{bar_message, line},
    mode::{ConsoleMode, bar, print},
};
use crate::log::{LogFormat, log_format};
use crate::record::StepRecord;

/// Shows the steps of a run.
pub struct Console {
    show: Show,
    total_steps: u64,
    unit: String,
    every: u64,
    /// The last step that was told of.
    last: u64,
}

enum Show {
    Bar(ProgressBar, Box<dyn Write + Send>),
    Lines(Box<dyn Write + Send>),
    Nothing,
}

impl Console {
    /// Lines go to `output`; a bar goes to standard error. `done` steps of `total_steps` were done before; `every` is
    /// the number of steps between plain lines, `unit` what targets are called.
    pub fn new(
        mode: ConsoleMode,
        done: u64,
        total_steps: u64,
        unit: String,
        every: u64,
        output: Box<dyn Write + Send>,
    ) -> Self {
        let template = "step {pos}/{len} [{wide_bar}] eta {eta} {msg}";
        let show = match mode {
            ConsoleMode::Quiet => Show::Nothing,
            _ if mode.draws_bar() => Show::Bar(bar(done, total_steps, template), output),
            _ => Show::Lines(output),
        };
        Self { show, total_steps, unit, every: every.max(1), last: done }
    }

    /// Shows a step: on the bar; or as a line if it is the first, the last, has a validation loss, or is the first after another
    /// `every` steps, which is each multiple of them where there is a record of every step.
    pub fn step(&mut self, record: &StepRecord, is_first: bool) {
        let (step, measured) = (record.step, record.validation_loss.is_some());
        let is_due = step / self.every != std::mem::replace(&mut self.last, step) / self.every;
        match &mut self.show {
            Show::Bar(bar, output) => {
                bar.set_message(bar_message(record, &self.unit));
                bar.set_position(step);
                if measured {
                    above(bar, output, &line(record, self.total_steps, &self.unit));
                }
            }
            Show::Lines(output) => {
                if is_first || measured || step == self.total_steps || is_due {
                    let text = match log_format() {
                        LogFormat::Text => line(record, self.total_steps, &self.unit),
                        LogFormat::Json => serde_json::to_string(record).unwrap_or_default(),
                    };
                    print(output, &text);
                }
            }
            Show::Nothing => {}
        }
    }

    /// Sets the bar back to a step. Plain lines need nothing.
    pub fn rewind(&mut self, step: u64) {
        self.last = self.last.min(step);
        if let Show::Bar(bar, _) = &self.show {
            bar.set_position(step);
        }
    }

    /// Shows a line of text.
    pub fn note(&mut self, text: &str) {
        match &mut self.show {
            Show::Bar(bar, output) => above(bar, output, text),
            Show::Lines(output) => print(output, text),
            Show::Nothing => {}
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Show::Bar(bar, _) = &self.show {
            bar.finish_and_clear();
        }
    }
}

/// Writes a line above the bar, with a newline of its own, so that the two stay apart in a log that has both.
fn above(bar: &ProgressBar, output: &mut dyn Write, text: &str) {
    bar.suspend(|| print(output, text));
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_bar_starts_where_the_run_does_and_goes_back() {
        let bar = bar(60, 100, "{pos}");
        assert_eq!((bar.position(), bar.per_sec()), (60, 0.0), "earlier steps say nothing about the speed");
        let show = Show::Bar(bar.clone(), Box::new(io::sink()));
        let mut console = Console { show, total_steps: 100, unit: "tokens".into(), every: 1, last: 0 };
        console.step(&StepRecord { step: 61, ..StepRecord::default() }, true);
        assert_eq!(bar.position(), 61);
        console.rewind(40);
        assert_eq!(bar.position(), 40);
    }
}
