//! Leases on the places of a run, where no lock of the operating system reaches.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use brigade_checkpoint::{Holder, Lease, lease_location, take_lease};
use brigade_report::{HISTORY_FILE, HistoryRecord, METRICS_FILE, RunEvent};
use serde_json::{Value, json};

use super::lock::boot_id;
use crate::error::{format_error, print_stderr};
use crate::settings::Settings;

/// A line of `metrics.jsonl` is shorter.
const MAX_LINE_BYTES: u64 = 256 << 10;

/// Takes the lease of `place`, an option's value, for the run in the folder `dir`, whose lock is `lock`. It says what it waits for, and takes nothing from an earlier
/// run that `check` refuses to replace. `lost` is called when another run has taken the place.
///
/// # Errors
/// If another run holds it, the place cannot be written to, or `check` fails.
pub(crate) fn lease(
    place: &str,
    option: &str,
    dir: &Path,
    lock: Option<&File>,
    settings: &Settings,
    check: &dyn Fn() -> anyhow::Result<()>,
    lost: impl FnMut(&str) + Send + 'static,
) -> anyhow::Result<Lease> {
    let folder = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let holder = Holder {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        folder: folder.display().to_string(),
        since: since.as_secs(),
        lock: lock.and_then(identity).unwrap_or_default(),
    };
    let duration = Duration::from_secs_f64(settings.checkpoint.lease_seconds);
    let waits = &mut |text: &str| print_stderr(format_args!("{text} (checkpoint.lease_seconds)"));
    // Whether it may pass is not in its text.
    let failed = RefCell::new(None);
    let check = || {
        check().map_err(|error| {
            let text = format_error(&error);
            failed.replace(Some(error));
            text
        })
    };
    let lease = lease_location(place).and_then(|place| take_lease(place, &holder, duration, waits, &check));
    let lease = lease.map_err(|error| failed.take().unwrap_or_else(|| error.into()));
    let lease = lease.with_context(|| option.to_owned())?;
    let warn = |message: &str| print_stderr(format_args!("warning: {message}"));
    let (folder, steps) = (folder.to_owned(), settings.train.steps);
    lease.watch(move || status(&folder, steps), lost, warn);
    Ok(lease)
}

/// The lock, by the start of the system and the file.
fn identity(lock: &File) -> Option<String> {
    let (boot, file) = (boot_id()?, lock.metadata().ok()?);
    Some(format!("{boot}:{}:{}", file.dev(), file.ino()))
}

/// The run's last step, for those who see the lease and not the folder. `steps`: how many it is to make, where the settings say it; else the ranks find it from the data.
fn status(folder: &Path, steps: u64) -> Value {
    let started = || {
        let history = fs::read_to_string(folder.join(HISTORY_FILE)).ok()?;
        let events =
            history.lines().rev().filter_map(|line| serde_json::from_str::<HistoryRecord>(line).ok());
        events.into_iter().find_map(|record| match record.event {
            RunEvent::Started { total_steps, .. } => Some(total_steps),
            _ => None,
        })
    };
    let total_steps = if steps > 0 { steps } else { started().unwrap_or(0) };
    let last = || {
        let mut file = File::open(folder.join(METRICS_FILE)).ok()?;
        let size = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(MAX_LINE_BYTES))).ok()?;
        let mut end = Vec::new();
        file.take(MAX_LINE_BYTES).read_to_end(&mut end).ok()?;
        let text = String::from_utf8_lossy(&end).into_owned();
        // A line that is being written is not whole.
        text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok())
    };
    json!({ "total_steps": total_steps, "last": last() })
}
