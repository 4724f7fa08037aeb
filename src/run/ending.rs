//! How a run ends: who says why, and with which exit code.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use brigade_comm::Group;
use brigade_launch::{Event, exit, interrupt};

use super::run_folder::launched_in;
use crate::error::{Agreed, Interrupted, Preempted, Unfit, Usage, explain, tell};
use crate::settings::SettingError;

/// Exit code of a rank that panicked, as Rust's own; the launcher turns it into 1.
pub(crate) const PANICKED: u8 = 101;

/// How long a rank that saw another one fail gives the launcher to end it. The cause is then the first
/// to be gone and named.
const CAUSE_FIRST: Duration = Duration::from_secs(1);

/// Whether rank 0, whose output is on the terminal already, ended with a message of its own.
pub(crate) fn said_why(failure: &brigade_launch::RankFailure) -> bool {
    failure.last_lines.iter().any(|line| line.starts_with("brigade: "))
}

/// Whether all ranks end with this error, at the same point.
pub(crate) fn is_shared(error: &anyhow::Error) -> bool {
    let agreed = error.downcast_ref::<brigade_core::Error>().is_some_and(brigade_core::Error::is_agreed);
    agreed
        || error.is::<SettingError>()
        || error.is::<Agreed>()
        || error.is::<Unfit>()
        || error.is::<Preempted>()
}

/// Whether something came between ranks that their last operations may explain: not where they ended as they were told
/// to, or all for one reason.
pub(crate) fn is_unexplained(result: &std::thread::Result<anyhow::Result<()>>) -> bool {
    match result {
        Ok(Ok(())) => false,
        Ok(Err(error)) => !(is_shared(error) || error.is::<Interrupted>()),
        Err(_) => true,
    }
}

/// Writes what this rank did last; it is there wholly or not at all.
pub(crate) fn write_flight(group: &Group, path: &Path) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    Ok(group.flight_recorder().write(path)?)
}

/// Tells of what the launcher does about failures.
pub(crate) fn announce(event: Event) {
    match event {
        Event::Restarting { number, of, failure } => {
            tell(format_args!("brigade: {failure}\nbrigade: starting again, restart {number} of {of}"));
        }
        Event::Preempted { signal } => {
            tell(format_args!(
                "brigade: {signal}: saving a checkpoint; a second signal ends the run at once"
            ));
        }
        _ => {}
    }
}

/// Decides what a rank says of its end. One that only saw another rank fail leaves the first word
/// to the launcher, which knows the cause; what all ranks fail by is rank 0's to tell.
pub(crate) fn failed_rank(rank: usize, error: anyhow::Error) -> anyhow::Result<u8> {
    if error.is::<Preempted>() {
        return Err(error);
    }
    let interrupt = interrupt::install()?;
    let seen = error.chain().any(|cause| cause.is::<brigade_comm::Error>());
    if seen || (is_shared(&error) && rank != 0) {
        if interrupt.kind() == Some(interrupt::InterruptKind::Stop) {
            return Ok(exit::INTERRUPTED);
        }
        let until = Instant::now() + CAUSE_FIRST;
        while launched_in().is_some() && !interrupt.is_set() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if interrupt.is_set() && rank == 0 {
            return Ok(exit::FAILED);
        }
    }
    Err(error)
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of unknown text".into())
}

/// Prints an error and gives its exit code.
pub(crate) fn report(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        return exit::INTERRUPTED;
    }
    if error.is::<Preempted>() {
        return exit::PREEMPTED;
    }
    tell(format_args!("brigade: {}", explain(error)));
    let usage = error.is::<Usage>()
        || error.is::<SettingError>()
        || error.is::<Unfit>()
        || error.is::<brigade_launch::Error>();
    if usage { exit::USAGE } else { exit::FAILED }
}
