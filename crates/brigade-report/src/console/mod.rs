//! Progress for a person to look at, on standard error.

pub mod byte_progress;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::StepRecord;

/// How progress is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConsoleMode {
    /// A progress bar if standard error is a terminal, else plain lines.
    #[default]
    Auto,
    /// Plain lines.
    Plain,
    /// Nothing at all.
    Quiet,
}

impl ConsoleMode {
    /// True if a progress bar is to be drawn.
    pub(crate) fn draws_bar(self) -> bool {
        self == Self::Auto
            && io::stderr().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }
}

/// A progress bar on standard error that looks alive also between two steps. The time left is estimated from what comes
/// after `begin`.
pub(crate) fn bar(begin: u64, total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style.progress_chars("=> "));
    // A tick makes the estimate start from here, then it forgets at what speed it came here. Only then may ticks come
    // by themselves.
    bar.set_position(begin);
    bar.tick();
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Shows the steps of a run.
pub(crate) struct Console {
    show: Show,
    total_steps: u64,
    every: u64,
}

enum Show {
    Bar(ProgressBar, Box<dyn Write + Send>),
    Lines(Box<dyn Write + Send>),
    Nothing,
}

impl Console {
    /// Lines go to `output`; a bar goes to standard error. `done` steps of `total_steps` were done before; `every` is
    /// the number of steps between plain lines.
    pub fn new(
        mode: ConsoleMode,
        done: u64,
        total_steps: u64,
        every: u64,
        output: Box<dyn Write + Send>,
    ) -> Self {
        let template = "step {pos}/{len} [{wide_bar}] eta {eta} {msg}";
        let show = match mode {
            ConsoleMode::Quiet => Show::Nothing,
            _ if mode.draws_bar() => Show::Bar(bar(done, total_steps, template), output),
            _ => Show::Lines(output),
        };
        Self { show, total_steps, every: every.max(1) }
    }

    /// Shows a step: on the bar; or as a line if it is the first, the last, one in `every`, or has a
    /// validation loss.
    pub fn step(&mut self, record: &StepRecord, is_first: bool) {
        let (step, measured) = (record.step, record.validation_loss.is_some());
        match &mut self.show {
            Show::Bar(bar, output) => {
                bar.set_message(bar_message(record));
                bar.set_position(step);
                if measured {
                    above(bar, output, &line(record, self.total_steps));
                }
            }
            Show::Lines(output) => {
                if is_first || measured || step == self.total_steps || step.is_multiple_of(self.every) {
                    print(output, &line(record, self.total_steps));
                }
            }
            Show::Nothing => {}
        }
    }

    /// Sets the bar back to a step. Lines need nothing.
    pub fn rewind(&mut self, step: u64) {
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

/// Writes a line above the bar, with a newline of its own, so that it can be told from the bar where both are
/// kept.
fn above(bar: &ProgressBar, output: &mut dyn Write, text: &str) {
    bar.suspend(|| print(output, text));
}

/// Writes a line in one piece. Nobody may be listening any more, which is no reason to end a run.
pub(crate) fn print(output: &mut dyn Write, text: &str) {
    drop(output.write_all(format!("{text}\n").as_bytes()).and_then(|()| output.flush()));
}

/// The columns of a step as plain text: step, loss, grad_norm, lr, tokens/s, TFLOP/s and MFU of a rank where known,
/// the most memory of a rank (its device's where it has its own, with the part of it), data-wait, and the validation loss
/// where measured.
pub fn line(record: &StepRecord, total_steps: u64) -> String {
    let StepRecord { step, loss, grad_norm, learning_rate, tokens_per_second, .. } = record;
    let width = total_steps.to_string().len();
    let mut text = format!(
        "step {step:>width$}/{total_steps}  loss {loss:.4}  grad_norm {grad_norm:.4}  lr {learning_rate:.2e}  tokens/s {}",
        grouped(tokens_per_second.round() as u64)
    );
    if let Some(tflops) = record.tflops {
        text += &format!("  TFLOP/s {tflops:.3}");
    }
    if let Some(mfu) = record.mfu_percent {
        text += &format!("  MFU {mfu:.1}%");
    }
    text += &format!("  memory {:.2}GiB", record.peak_memory_gib());
    if let Some(part) = record.device_memory.and_then(|memory| memory.peak_percent()) {
        text += &format!("({part:.1}%)");
    }
    text += &format!("  data-wait {:.1}%", record.data_wait_percent());
    if let Some(loss) = record.validation_loss {
        text += &format!("  validation_loss {loss:.4}");
    }
    text
}

fn bar_message(record: &StepRecord) -> String {
    let rate = grouped(record.tokens_per_second.round() as u64);
    let StepRecord { loss, learning_rate, .. } = record;
    format!("loss {loss:.4} lr {learning_rate:.2e} {rate} tok/s data-wait {:.1}%", record.data_wait_percent())
}

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `32505856` as `31 MiB`, `1610612736` as `1.5 GiB`.
pub fn size(bytes: u64) -> String {
    let (mut number, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if number < 1024.0 {
            break;
        }
        (number, unit) = (number / 1024.0, larger);
    }
    let digits = usize::from(number < 10.0 && unit != "B");
    format!("{number:.digits$} {unit}")
}

/// `1234567.0` as `1.23M`.
pub(crate) fn readable(number: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(size, _)| number >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", number / size),
        None => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceMemory;

    fn record() -> StepRecord {
        StepRecord {
            step: 7,
            loss: 4.123456,
            grad_norm: 0.5,
            learning_rate: 3e-4,
            tokens_per_second: 12345.4,
            step_seconds: 2.0,
            data_wait_seconds: 0.004,
            peak_rss_bytes: 1 << 29,
            ..StepRecord::default()
        }
    }

    #[test]
    fn the_line_has_all_columns_in_order() {
        assert_eq!(
            line(&record(), 100),
            "step   7/100  loss 4.1235  grad_norm 0.5000  lr 3.00e-4  tokens/s 12,345  memory 0.50GiB  data-wait 0.2%"
        );
        let rates = (Some(0.1234), Some(12.34));
        let measured =
            StepRecord { validation_loss: Some(4.0), tflops: rates.0, mfu_percent: rates.1, ..record() };
        let text = line(&measured, 100);
        assert!(text.contains("12,345  TFLOP/s 0.123  MFU 12.3%  memory"), "{text}");
        assert!(text.ends_with("  validation_loss 4.0000"), "{text}");
        let broken = StepRecord { loss: f64::NAN, tokens_per_second: f64::INFINITY, ..record() };
        assert!(line(&broken, 0).contains("loss NaN"));
    }

    #[test]
    fn the_memory_is_the_devices_where_there_is_one() {
        let mut memory =
            DeviceMemory { in_use: 0, reserved: 1 << 30, reserved_peak: 40 << 30, total: Some(80 << 30) };
        let shown = |memory| line(&StepRecord { device_memory: Some(memory), ..record() }, 100);
        assert!(shown(memory).ends_with("  memory 40.00GiB(50.0%)  data-wait 0.2%"), "{}", shown(memory));
        memory.total = None;
        assert!(shown(memory).ends_with("  memory 40.00GiB  data-wait 0.2%"), "{}", shown(memory));
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([12.0, 1500.0, 2.5e6].map(readable), ["12", "1.50k", "2.50M"]);
        assert_eq!(
            [0, 1023, 1 << 10, 31 << 20, 3 << 29].map(size),
            ["0 B", "1023 B", "1.0 KiB", "31 MiB", "1.5 GiB"]
        );
        assert_eq!(size(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn a_bar_begins_where_the_run_does_and_goes_back() {
        let bar = bar(60, 100, "{pos}");
        assert_eq!((bar.position(), bar.per_sec()), (60, 0.0), "earlier steps say nothing about the speed");
        let show = Show::Bar(bar.clone(), Box::new(io::sink()));
        let mut console = Console { show, total_steps: 100, every: 1 };
        console.step(&StepRecord { step: 61, ..record() }, true);
        assert_eq!(bar.position(), 61);
        console.rewind(40);
        assert_eq!(bar.position(), 40);
    }
}
