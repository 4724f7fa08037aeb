//! Two steps with one size of micro-batches, in a child process.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use brigade_launch::interrupt;
use brigade_report::{HumanBytes, HumanCount, METRICS_FILE, StepRecord, memory_capacity};
use serde::{Deserialize, Serialize};

use super::super::ranks::Ranks;
use super::MARGIN;
use super::command_line::{has_option, without};
use crate::settings::Settings;

/// Updates of a trial: the first one allocates what the others use again.
const UPDATES: usize = 2;

/// How often a child's progress is looked at.
const POLL: Duration = Duration::from_millis(10);

/// How often it is tried to remove a trial's folder.
const MOST_REMOVALS: usize = 100;

/// What a trial is not started with: where results go, how long the run is, and what else a run does between steps.
const OPTIONS: [&str; 8] = [
    "--out",
    "--resume",
    "--steps",
    "--epochs",
    "--checkpoint-every",
    "--keep",
    "--profile-steps",
    "--max-restarts",
];

/// A size that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Samples of a micro-batch.
    pub size: usize,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It trained.
    Ran {
        /// Targets per second.
        per_second: f64,
        /// Bytes that the fullest rank took.
        memory: u64,
    },
    /// It trained, with less memory left than there should be.
    TooFull(String),
    /// It did not train; why.
    Failed(String),
}

impl Trial {
    /// Targets per second, where it fits.
    pub(super) fn rate(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Ran { per_second, .. } => Some(per_second),
            Outcome::TooFull(_) | Outcome::Failed(_) => None,
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Ran { per_second, memory } => {
                write!(f, "{}/s, {}", HumanCount(*per_second as u64), HumanBytes(*memory))
            }
            Outcome::TooFull(why) | Outcome::Failed(why) => f.write_str(why),
        }
    }
}

/// Trains two updates with micro-batches of this size, with the program's `args`, into a folder that is removed. Signals are
/// [blocked](interrupt::block_signals): one that arrives ends the trial, and then has its effect.
///
/// # Errors
/// If the child cannot be started or its folder not be made.
pub(super) fn run_trial(
    args: &[OsString],
    size: usize,
    settings: &Settings,
    ranks: &Ranks,
) -> anyhow::Result<Trial> {
    let folder = tempfile::Builder::new().prefix("brigade-auto-").tempdir();
    let folder = folder.context("cannot make a temporary folder for --micro-batch-size auto")?;
    let log = folder.path().join("stderr");
    let out = folder.path().join("run");
    let every = settings.train.sync_every.max(1);
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command.args(without(args, &OPTIONS, &["--overwrite", "--quiet", "-q"])).arg("--out").arg(&out);
    let flags = [
        ("--micro-batch-size", size.to_string()),
        ("--nproc-per-node", ranks.per_node.to_string()),
        // It is ended before the last step, so that it writes no weights.
        ("--steps", (every * (UPDATES + 2)).to_string()),
        ("--checkpoint-every", "0".to_owned()),
    ];
    let has_ranks = has_option(args, "--nproc-per-node");
    for (flag, value) in flags.into_iter().filter(|(flag, _)| *flag != "--nproc-per-node" || !has_ranks) {
        command.args([flag.to_owned(), value]);
    }
    let sets = [
        "train.validate_every=0",
        "train.early_stopping_patience=0",
        "checkpoint.keep_best=false",
        "checkpoint.load_best_at_end=false",
        "schedule.decay_steps=0",
        "profile.steps=",
        "strategy.inner_steps=1",
        "checkpoint.dir=",
    ];
    for set in sets {
        command.args(["--set", set]);
    }
    let log_file = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
    let available = memory_capacity().map(|capacity| capacity.available);
    let child = command.spawn().context("cannot start a trial for --micro-batch-size auto")?;
    let outcome = watch(Ended(child), &out).map(|record| match record {
        Some(record) => outcome(&record, available, ranks.per_node),
        None => Outcome::Failed(last_line(&log)),
    });
    // Ranks end a moment after their launcher, and may still write.
    for _ in 0..MOST_REMOVALS {
        if std::fs::remove_dir_all(folder.path()).is_ok() {
            break;
        }
        std::thread::sleep(POLL);
    }
    if interrupt::is_signal_pending() {
        interrupt::exit_on_signal()?;
        bail!("a signal ended the trials of --micro-batch-size auto");
    }
    Ok(Trial { size, outcome: outcome? })
}

/// A child that is killed when this is dropped; its ranks end with it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits for the record of the last update that counts; none if the child ended before, or a signal asks this process to end.
fn watch(mut child: Ended, out: &Path) -> anyhow::Result<Option<StepRecord>> {
    loop {
        let ended = child.0.try_wait().context("a trial for --micro-batch-size auto")?.is_some();
        let text = std::fs::read_to_string(out.join(METRICS_FILE)).unwrap_or_default();
        let mut records = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        if let Some(line) = records.nth(UPDATES - 1) {
            return Ok(Some(serde_json::from_str(line).context("the metrics of a trial")?));
        }
        if ended || interrupt::is_signal_pending() {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

fn outcome(record: &StepRecord, available: Option<u64>, ranks: usize) -> Outcome {
    let (memory, has) = match record.device_memory {
        Some(memory) => (memory.reserved_peak, memory.total),
        None => (record.peak_rss_bytes, available.map(|bytes| bytes / ranks.max(1) as u64)),
    };
    match has.filter(|has| memory as f64 > MARGIN * *has as f64) {
        Some(has) => Outcome::TooFull(format!(
            "a rank takes {} of {}, more than {:.0}%",
            HumanBytes(memory),
            HumanBytes(has),
            100.0 * MARGIN
        )),
        None => Outcome::Ran { per_second: record.tokens_per_second, memory },
    }
}

/// What a child said last.
fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let memory = text.lines().find(|line| line.contains(" ran out of memory: "));
    let said = memory
        .or_else(|| text.lines().rfind(|line| line.starts_with("brigade: ") || line.starts_with("error: ")));
    let said = said
        .or_else(|| text.lines().rfind(|line| !line.trim().is_empty()))
        .unwrap_or("it ended without printing anything");
    said.trim_start_matches("brigade: ").to_owned()
}
