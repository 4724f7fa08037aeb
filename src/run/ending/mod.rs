//! How a run ends: who prints the cause, and the exit code.

pub(crate) mod exhaustion;
pub(crate) mod notify;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_comm::Group;
use brigade_launch::{Event, exit, interrupt};

use crate::error::{
    AgreedError, CheckpointUsageError, Interrupted, Preempted, UsageError, format_error, print_stderr,
};
use crate::launched::launcher_folder;
use crate::settings::SettingError;

/// Exit code of a rank that panicked, as Rust's own; the launcher turns it into 1.
pub(crate) const PANIC_EXIT_CODE: u8 = 101;

/// How long a rank that saw another one fail waits for the launcher to end it, so that the cause is the first to end and
/// is the one that is reported.
const CAUSE_GRACE: Duration = Duration::from_secs(1);

/// Whether rank 0, whose output is on the terminal already, ended with a message of its own.
pub(crate) fn printed_its_error(failure: &brigade_launch::RankFailure) -> bool {
    failure.last_lines.iter().any(|line| line.starts_with("brigade: "))
}

/// Whether all ranks end with this error, at the same point.
pub(crate) fn is_on_all_ranks(error: &anyhow::Error) -> bool {
    let agreed = error.downcast_ref::<brigade_core::Error>().is_some_and(brigade_core::Error::is_agreed);
    agreed
        || error.is::<SettingError>()
        || error.is::<AgreedError>()
        || error.is::<CheckpointUsageError>()
        || error.is::<Preempted>()
}

/// Whether this rank only saw another one fail.
pub(crate) fn is_of_another_rank(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<brigade_comm::Error>())
}

/// Whether the flight recorder may explain the end: not if the ranks ended as they were told to, or all for one reason.
pub(crate) fn needs_flight_record(result: &std::thread::Result<anyhow::Result<()>>) -> bool {
    match result {
        Ok(Ok(())) => false,
        Ok(Err(error)) => !(is_on_all_ranks(error) || error.is::<Interrupted>()),
        Err(_) => true,
    }
}

/// Writes this rank's flight record, whole or not at all.
pub(crate) fn write_flight(group: &Group, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    }
    Ok(group.flight_recorder().write(path)?)
}

/// Prints what the launcher does about failures.
pub(crate) fn print_event(event: Event) {
    if let Some(text) = event.about_nodes() {
        print_stderr(format_args!("brigade: {text}"));
    }
    match event {
        Event::Restarting { number, of, failure } => {
            print_stderr(format_args!(
                "brigade: {failure}\nbrigade: starting again, restart {number} of {of}"
            ));
        }
        Event::Preempted { signal } => {
            print_stderr(format_args!(
                "brigade: {signal}: saving a checkpoint; a second signal stops the run at once"
            ));
        }
        _ => {}
    }
}

/// What a rank reports after a failure. A rank that only saw another one fail leaves the report to the launcher, which knows
/// the cause; a failure of all ranks is reported by rank 0.
pub(crate) fn rank_failed(rank: usize, error: anyhow::Error) -> anyhow::Result<u8> {
    if error.is::<Preempted>() {
        return Err(error);
    }
    let interrupt = interrupt::install()?;
    if is_of_another_rank(&error) || (is_on_all_ranks(&error) && rank != 0) {
        if interrupt.kind() == Some(interrupt::InterruptKind::Stop) {
            return Ok(exit::INTERRUPTED);
        }
        let until = Instant::now() + CAUSE_GRACE;
        while launcher_folder().is_some() && !interrupt.is_set() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if launcher_folder().is_some() && interrupt.is_set() && rank == 0 {
            return Ok(exit::FAILED);
        }
    }
    Err(error)
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of unknown text".into())
}

/// Runs something that may panic, as a user's block does where it refuses its input; the panic is then its error.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(anyhow::anyhow!("panic: {}", panic_text(panic.as_ref()))))
}

/// Prints an error and returns its exit code.
pub(crate) fn report(error: &anyhow::Error) -> u8 {
    if !(error.is::<Interrupted>() || error.is::<Preempted>()) {
        print_stderr(format_args!("brigade: {}", format_error(error)));
    }
    exit_code(error)
}

/// Whether an error is a mistake in what the run was given, found before it began.
pub(crate) fn is_mistake(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|usage: &UsageError| usage.exit_code() == exit::USAGE)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        return exit::INTERRUPTED;
    }
    if error.is::<Preempted>() {
        return exit::PREEMPTED;
    }
    if let Some(usage) = error.downcast_ref::<UsageError>() {
        return usage.exit_code();
    }
    if let Some(launch) = error.downcast_ref::<brigade_launch::Error>() {
        return launch.exit_code();
    }
    let usage = error.is::<SettingError>() || error.is::<CheckpointUsageError>();
    if usage { exit::USAGE } else { exit::FAILED }
}
