//! Tells a command of the user's how a run ended.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use brigade_launch::Outcome;
use serde_json::json;

use crate::error::print_stderr;

/// A command that takes longer is killed: the run itself is over.
const DEADLINE: Duration = Duration::from_secs(30);

/// How a run ended, for those who only get to know that.
pub(crate) struct Ending {
    /// `finished`, `preempted`, `interrupted` or `failed`.
    pub event: &'static str,
    /// One line.
    pub reason: String,
    pub exit_code: u8,
}

impl Ending {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let event = match outcome {
            Outcome::Done => "finished",
            Outcome::Preempted { .. } => "preempted",
            Outcome::NodeLost(lost) if lost.start_again => "preempted",
            Outcome::Interrupted { .. } => "interrupted",
            _ => "failed",
        };
        let reason = outcome.to_string().lines().next().unwrap_or_default().to_owned();
        Self { event, reason, exit_code: outcome.exit_code() }
    }

    /// Of a run that its launcher gave up.
    pub(crate) fn failed(reason: &str, exit_code: u8) -> Self {
        Self { event: "failed", reason: reason.lines().next().unwrap_or_default().to_owned(), exit_code }
    }
}

/// Runs the command of `output.notify`, if there is one, with the end as JSON on its input. A command that fails changes nothing but a line of
/// output.
pub(crate) fn notify(command: &[String], dir: &Path, ending: &Ending) {
    let Some((program, args)) = command.split_first() else { return };
    let Ending { event, reason, exit_code } = ending;
    let message = json!({
        "event": event, "run": dir, "reason": reason, "exit_code": exit_code, "time": brigade_report::now(),
    });
    if let Err(error) = tell(Command::new(program).args(args), &format!("{message}\n")) {
        print_stderr(format_args!("warning: output.notify ({program}): {error:#}"));
    }
}

fn tell(command: &mut Command, message: &str) -> anyhow::Result<()> {
    let mut child = command.stdin(Stdio::piped()).spawn().context("it cannot be started")?;
    if let Some(mut input) = child.stdin.take() {
        // It need not read it, and so little fits into the pipe of one that does not.
        let _ = input.write_all(message.as_bytes());
    }
    let begin = Instant::now();
    while begin.elapsed() < DEADLINE {
        if let Some(status) = child.try_wait()? {
            return if status.success() { Ok(()) } else { bail!("it ended with {status}") };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(&mut child);
    bail!("it did not end within {} s, and was killed", DEADLINE.as_secs())
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
