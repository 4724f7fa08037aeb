//! Progress of a pass over data.

use std::{
    io::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use indicatif::{HumanBytes, ProgressBar};

use super::mode::{ConsoleMode, bar, print};
use crate::log::log_output;

/// Progress over a known number of bytes, e.g. while a corpus is tokenized. Several threads may advance it.
///
/// On a terminal it is a bar with speed and time left, elsewhere a line at each tenth.
pub struct ByteProgress {
    label: String,
    total: u64,
    done: AtomicU64,
    show: Show,
}

enum Show {
    Bar(ProgressBar),
    /// The output, and the last tenth that was printed.
    Lines(Mutex<(Box<dyn Write + Send>, u64)>),
    Nothing,
}

impl ByteProgress {
    /// Starts, on standard error.
    pub fn start(mode: ConsoleMode, total: u64, label: impl Into<String>) -> Self {
        Self::start_on(mode, total, label, log_output())
    }

    /// Starts; plain lines go to `output`.
    pub fn start_on(
        mode: ConsoleMode,
        total: u64,
        label: impl Into<String>,
        output: Box<dyn Write + Send>,
    ) -> Self {
        let label = label.into();
        let show = match mode {
            ConsoleMode::Quiet => Show::Nothing,
            _ if mode.draws_bar() => {
                let bar = bar(0, total, "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}");
                bar.set_message(label.clone());
                Show::Bar(bar)
            }
            _ => Show::Lines(Mutex::new((output, 0))),
        };
        Self { label, total, done: AtomicU64::new(0), show }
    }

    /// Advances by this many bytes.
    pub fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match &self.show {
            Show::Bar(bar) => bar.inc(bytes),
            Show::Lines(lines) => self.print_tenth(lines, done),
            Show::Nothing => {}
        }
    }

    /// Ends: the bar is removed, or a last line says how many bytes there were.
    pub fn finish(self) {
        match &self.show {
            Show::Bar(bar) => bar.finish_and_clear(),
            Show::Lines(lines) => {
                let done = HumanBytes(self.done.load(Ordering::Relaxed));
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                print(&mut lines.0, &format!("{}: done, {done}", self.label));
            }
            Show::Nothing => {}
        }
    }

    fn print_tenth(&self, lines: &Mutex<(Box<dyn Write + Send>, u64)>, done: u64) {
        let tenth = if self.total == 0 { 0 } else { (u128::from(done) * 10 / u128::from(self.total)) as u64 };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        // `finish` prints the last tenth.
        if tenth > lines.1 && tenth < 10 {
            lines.1 = tenth;
            let (done, total) = (HumanBytes(done), HumanBytes(self.total));
            print(&mut lines.0, &format!("{}: {}% ({done} of {total})", self.label, tenth * 10));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reporter::tests::Shared;

    #[test]
    fn a_line_each_tenth_whoever_advances() {
        let output = Shared::default();
        let progress =
            ByteProgress::start_on(ConsoleMode::Plain, 4 << 20, "tokenizing", Box::new(output.clone()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1 << 10).for_each(|_| progress.advance(1 << 10)));
            }
        });
        progress.finish();
        let text = output.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 10, "{text}");
        assert!(lines[4].starts_with("tokenizing: 50% (2.00 MiB of 4.00 MiB)"), "{text}");
        assert_eq!(lines[9], "tokenizing: done, 4.00 MiB");
    }

    #[test]
    fn nothing_to_do_and_quiet() {
        let output = Shared::default();
        let empty = ByteProgress::start_on(ConsoleMode::Plain, 0, "x", Box::new(output.clone()));
        empty.advance(5);
        empty.finish();
        ByteProgress::start_on(ConsoleMode::Quiet, 1, "y", Box::new(output.clone())).advance(1);
        assert_eq!(output.text(), "x: done, 5 B\n");
    }
}
