//! How progress is shown, and where.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::log::{LogFormat, log_format};

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
            && log_format() == LogFormat::Text
            && io::stderr().is_terminal()
            && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
    }
}

/// A progress bar on standard error that also moves between two steps. The time left is estimated from what comes
/// after `begin`.
pub fn bar(begin: u64, total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style.progress_chars("=> "));
    // The first tick makes the estimate start from here; the reset forgets the jump to this position. Only then may the
    // bar tick by itself.
    bar.set_position(begin);
    bar.tick();
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Writes a line in one piece. Errors are dropped: a run continues when nobody reads its output.
pub fn print(output: &mut dyn Write, text: &str) {
    drop(output.write_all(format!("{text}\n").as_bytes()).and_then(|()| output.flush()));
}
