//! Progress of the steps of a run.

use std::{
    io::Write,
    time::{Duration, Instant},
};

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
    /// The step from which on the time left is estimated, and when it ended: the first one takes longer than others.
    from: Option<(u64, Instant)>,
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
        Self { show, total_steps, unit, every: every.max(1), last: done, from: None }
    }

    /// Shows a step: on the bar; or as a line if it is the first, the last, has a validation loss, or is the first after another
    /// `every` steps, which is each multiple of them where there is a record of every step.
    pub fn step(&mut self, record: &StepRecord, is_first: bool) {
        let (step, measured) = (record.step, record.validation_loss.is_some());
        let is_due = step / self.every != std::mem::replace(&mut self.last, step) / self.every;
        let left = self.left(step, Instant::now());
        match &mut self.show {
            Show::Bar(bar, output) => {
                bar.set_message(bar_message(record, &self.unit));
                bar.set_position(step);
                if measured {
                    above(bar, output, &line(record, self.total_steps, &self.unit, None));
                }
            }
            Show::Lines(output) => {
                if is_first || measured || step == self.total_steps || is_due {
                    let text = match log_format() {
                        LogFormat::Text => line(record, self.total_steps, &self.unit, left),
                        LogFormat::Json => serde_json::to_string(record).unwrap_or_default(),
                    };
                    print(output, &text);
                }
            }
            Show::Nothing => {}
        }
    }

    /// The time until the last step, after a step that ended now: none before there is another to compare with, nor after the last.
    fn left(&mut self, step: u64, now: Instant) -> Option<Duration> {
        let (first, began) = *self.from.get_or_insert((step, now));
        let done = step.checked_sub(first).filter(|done| *done > 0)?;
        let steps = self.total_steps.checked_sub(step).filter(|left| *left > 0)?;
        let seconds = now.saturating_duration_since(began).as_secs_f64() * steps as f64 / done as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Sets the bar back to a step. Of plain lines, the time left is estimated anew.
    pub fn rewind(&mut self, step: u64) {
        self.last = self.last.min(step);
        self.from = None;
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
        let unit = "tokens".into();
        let mut console = Console { show, total_steps: 100, unit, every: 1, last: 0, from: None };
        console.step(&StepRecord { step: 61, ..StepRecord::default() }, true);
        assert_eq!(bar.position(), 61);
        console.rewind(40);
        assert_eq!(bar.position(), 40);
    }

    #[test]
    fn the_time_left_is_that_of_the_steps_since_the_first() {
        let mut console = Console::new(ConsoleMode::Quiet, 10, 100, "tokens".into(), 1, Box::new(io::sink()));
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(console.left(11, after(60)), None, "one step says nothing");
        assert_eq!(console.left(21, after(80)), Some(Duration::from_secs(2 * 79)));
        assert_eq!(console.left(100, after(240)), None, "nothing is left");
        console.rewind(50);
        assert_eq!(console.left(51, after(250)), None);
        assert_eq!(console.left(52, after(251)), Some(Duration::from_secs(48)));
    }
}
