//! Tells a command of the user's how a run ended.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use brigade_launch::{Outcome, exit};
use brigade_report::RunEvent;
use serde_json::json;

use super::exit_code;
use crate::error::{Interrupted, Preempted, format_error, print_stderr};
use crate::settings::SettingError;

/// A command that takes longer is killed: the run itself is over.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long a process that must end at once waits for the command, which then goes on without it.
const AT_ONCE: Duration = Duration::from_secs(2);

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
        Self { event, reason: reason(outcome), exit_code: outcome.exit_code() }
    }

    /// Of a run whose rank 0 has no launcher of Brigade's, and ends so.
    pub(crate) fn of_rank(result: &anyhow::Result<u8>) -> Self {
        let (event, reason, exit_code) = match result {
            Ok(exit::DONE) => ("finished", "all ranks are done".to_owned(), exit::DONE),
            Ok(exit::INTERRUPTED) => ("interrupted", "interrupted".to_owned(), exit::INTERRUPTED),
            Ok(code) => ("failed", "the run failed; rank 0 has printed why".to_owned(), *code),
            Err(error) => {
                let event = match () {
                    () if error.is::<Preempted>() => "preempted",
                    () if error.is::<Interrupted>() => "interrupted",
                    () => "failed",
                };
                (event, format_error(error), exit_code(error))
            }
        };
        Self { event, ..Self::failed(&reason, exit_code) }
    }

    /// What the history says of it; none of a good end, which rank 0 has written down.
    pub(crate) fn record(&self) -> Option<RunEvent> {
        match self.event {
            "failed" => Some(RunEvent::Failed { reason: self.reason.clone() }),
            "preempted" => Some(RunEvent::Preempted),
            // No other signal stops a rank.
            "interrupted" => Some(RunEvent::Interrupted { signal: "SIGINT".to_owned() }),
            _ => None,
        }
    }

    /// Of a run that its launcher gave up.
    pub(crate) fn failed(reason: &str, exit_code: u8) -> Self {
        Self { event: "failed", reason: reason.lines().next().unwrap_or_default().to_owned(), exit_code }
    }
}

/// Why a run ended: the first line of its outcome, and what the rank that failed printed.
pub(crate) fn reason(outcome: &Outcome) -> String {
    let text = outcome.to_string();
    let first = text.lines().next().unwrap_or_default();
    let said = match outcome {
        Outcome::Failed(failure) => failure.error_line(),
        _ => None,
    };
    said.map_or_else(|| first.to_owned(), |said| format!("{first}: {said}"))
}

/// Refuses a command of `output.notify` that this process could not start, before its run begins.
///
/// # Errors
/// If its program is not on this machine.
pub(crate) fn check_notify(command: &[String]) -> Result<(), SettingError> {
    let paths = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    match command.first() {
        Some(program) if !is_there(program, &paths) => Err(SettingError::new(
            "output.notify",
            format!("[{program:?}{}]", if command.len() > 1 { ", …" } else { "" }),
            format!(
                "there is no such program where the run ends (the launcher of node 0, or rank 0): its first word must be the path of one, or its name in PATH ({}); \
                 images of cargo xtask image have no shell and no curl",
                paths.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Where programs are looked for without a `PATH`.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Whether a program can be started, by its path or by its name in one of the folders `paths`.
fn is_there(program: &str, paths: &OsStr) -> bool {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    match program.contains('/') {
        true => is_program(Path::new(program)),
        false => {
            !program.is_empty()
                && std::env::split_paths(paths).any(|folder| is_program(&folder.join(program)))
        }
    }
}

/// Runs the command of `output.notify`, if there is one, with the end as JSON on its input. A command that fails changes nothing but a line of
/// output.
pub(crate) fn notify(command: &[String], dir: &Path, ending: &Ending) {
    notify_within(command, dir, ending, DEADLINE, true);
}

/// The same for a process that others must not wait for: a command that takes long is left alone.
pub(crate) fn notify_at_once(command: &[String], dir: &Path, ending: &Ending) {
    notify_within(command, dir, ending, AT_ONCE, false);
}

fn notify_within(command: &[String], dir: &Path, ending: &Ending, deadline: Duration, kills: bool) {
    let Some((program, args)) = command.split_first() else { return };
    let Ending { event, reason, exit_code } = ending;
    let message = json!({
        "event": event, "run": dir, "reason": reason, "exit_code": exit_code, "time": brigade_report::now(),
    });
    if let Err(error) = tell(Command::new(program).args(args), &format!("{message}\n"), deadline, kills) {
        print_stderr(format_args!("warning: output.notify ({program}): {error:#}"));
    }
}

fn tell(command: &mut Command, message: &str, deadline: Duration, kills: bool) -> anyhow::Result<()> {
    let mut child = command.stdin(Stdio::piped()).spawn().context("it cannot be started")?;
    if let Some(mut input) = child.stdin.take() {
        // It need not read it, and so little fits into the pipe of one that does not.
        let _ = input.write_all(message.as_bytes());
    }
    let begin = Instant::now();
    while begin.elapsed() < deadline {
        if let Some(status) = child.try_wait()? {
            return if status.success() { Ok(()) } else { bail!("it ended with {status}") };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if !kills {
        return Ok(());
    }
    kill(&mut child);
    bail!("it did not end within {} s, and was killed", deadline.as_secs())
}

fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_has_each_end() {
        let record = |result| Ending::of_rank(&result).record();
        let preempted = record(Err(Preempted.into()));
        assert_eq!([record(Ok(exit::DONE)), preempted], [None, Some(RunEvent::Preempted)]);
        let interrupted = || Some(RunEvent::Interrupted { signal: "SIGINT".into() });
        assert_eq!(
            [record(Ok(exit::INTERRUPTED)), record(Err(Interrupted.into()))],
            [interrupted(), interrupted()]
        );
        let failed = record(Err(anyhow::anyhow!("no disk\nleft").context("rank 0")));
        assert_eq!(failed, Some(RunEvent::Failed { reason: "rank 0: no disk".into() }));
        assert!(matches!(record(Ok(super::super::PANIC_EXIT_CODE)), Some(RunEvent::Failed { .. })));
    }

    #[test]
    fn only_programs_that_are_there_are_started_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for (name, mode) in [("tell", 0o755), ("text", 0o644)] {
            std::fs::write(path(name), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(path(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        let paths = std::env::join_paths([Path::new("/nowhere"), folder.path()]).unwrap();
        for (program, is_here) in [("tell", true), ("text", false), ("other", false), ("", false)] {
            assert_eq!(is_there(program, &paths), is_here, "{program}");
            assert_eq!(is_there(&path(program), OsStr::new("")), is_here, "{program}");
        }
        check_notify(&[]).unwrap();
        let message = check_notify(&[path("other"), "argument".into()]).unwrap_err().to_string();
        assert!(message.starts_with("output.notify = [\"/") && message.contains("in PATH ("), "{message}");
        assert!(!message.contains("argument"), "{message}");
    }
}
