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
use tempfile::TempDir;

use super::super::ranks::Ranks;
use super::command_line::{has_option, without};
use super::processes::{processes_with, wait_for};
use crate::settings::Settings;

/// Updates of a trial: the first one allocates what the others use again.
const UPDATES: usize = 2;

/// In a trial's folder: what its run writes, and what it prints.
const RUN: &str = "run";
const LOG: &str = "stderr";

/// What a rank says whose memory is exhausted.
pub(super) const OUT_OF_MEMORY: &str = " ran out of memory: ";

/// The share of memory that a run may take at its peak: what it needs differs from step to step.
const MARGIN: f64 = 0.9;

/// How often a child's progress is looked at.
const POLL: Duration = Duration::from_millis(10);

/// How often it is tried to remove a trial's folder.
const MAX_REMOVALS: usize = 100;

/// What a trial is not started with: where results go, how long the run is, and what else a run does between steps.
const OPTIONS: [&str; 11] = [
    "--out",
    "--resume",
    "--steps",
    "--epochs",
    "--checkpoint-every",
    "--keep",
    "--profile-steps",
    "--max-restarts",
    "--inner-steps",
    "--fragments",
    "--overlap-steps",
];

/// A size that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Samples of a micro-batch.
    pub size: usize,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: TrialOutcome,
}

/// What came of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialOutcome {
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
            TrialOutcome::Ran { per_second, .. } => Some(per_second),
            TrialOutcome::TooFull(_) | TrialOutcome::Failed(_) => None,
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            TrialOutcome::Ran { per_second, memory } => {
                write!(f, "{}/s, {}", HumanCount(*per_second as u64), HumanBytes(*memory))
            }
            TrialOutcome::TooFull(why) | TrialOutcome::Failed(why) => f.write_str(why),
        }
    }
}

/// Trains two updates with micro-batches of this size, with the program's `args`, on this node alone.
///
/// # Errors
/// If the child cannot be started or its folder not be made, or a signal arrives.
pub(super) fn run_trial(
    args: &[OsString],
    size: usize,
    settings: &Settings,
    ranks: &Ranks,
) -> anyhow::Result<Trial> {
    let mut running = RunningTrial::start(args, size, settings, ranks)?;
    let record = loop {
        match running.progress()? {
            Progress::Trains => std::thread::sleep(POLL),
            Progress::Trained(record) => break Some(record),
            Progress::Ended => break None,
        }
    };
    let TrialEnd { available, failure } = running.end(record.is_none())?;
    let outcome = match record {
        Some(record) => outcome(&record, available),
        None => TrialOutcome::Failed(failure.unwrap_or_default()),
    };
    Ok(Trial { size, outcome })
}

/// A child process that trains, with a temporary folder. Signals are [blocked](interrupt::block_signals): one that arrives ends the trial, and then
/// has its effect.
pub(super) struct RunningTrial {
    child: Child,
    folder: TempDir,
    available: Option<u64>,
}

/// How far a trial is.
pub(super) enum Progress {
    Trains,
    /// The record of the last update that counts.
    Trained(Box<StepRecord>),
    /// It ended before that, or a signal asks this process to end.
    Ended,
}

/// What a trial leaves behind on this node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TrialEnd {
    /// Bytes of memory for each rank of this node, before the trial.
    pub available: Option<u64>,
    /// What the child said last, if it failed.
    pub failure: Option<String>,
}

impl RunningTrial {
    /// Starts a child with the program's `args` and micro-batches of this size.
    ///
    /// # Errors
    /// If the child cannot be started or its folder not be made.
    pub fn start(args: &[OsString], size: usize, settings: &Settings, ranks: &Ranks) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("brigade-auto-").tempdir();
        let folder = folder.context("cannot create a temporary folder for --micro-batch-size auto")?;
        let every = settings.train.sync_every.max(1);
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(without(args, &OPTIONS, &["--overwrite", "--quiet", "-q"]));
        command.arg("--out").arg(folder.path().join(RUN));
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
            "strategy.fragments=1",
            "strategy.overlap_steps=0",
            "checkpoint.dir=",
            "output.notify=[]",
        ];
        for set in sets {
            command.args(["--set", set]);
        }
        let log = folder.path().join(LOG);
        let log = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let available = memory_capacity().map(|capacity| capacity.available / ranks.per_node.max(1) as u64);
        let child = command.spawn().context("cannot start a trial for --micro-batch-size auto")?;
        Ok(Self { child, folder, available })
    }

    /// How far it is. Only rank 0's node learns that it has trained.
    ///
    /// # Errors
    /// If the system does not say, or the metrics cannot be read.
    pub fn progress(&mut self) -> anyhow::Result<Progress> {
        let ended = self.child.try_wait().context("a trial for --micro-batch-size auto")?.is_some();
        let text = std::fs::read_to_string(self.folder.path().join(RUN).join(METRICS_FILE));
        let text = text.unwrap_or_default();
        let mut records = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        if let Some(line) = records.nth(UPDATES - 1) {
            let record = serde_json::from_str(line).context("the metrics of a trial")?;
            return Ok(Progress::Trained(Box::new(record)));
        }
        Ok(match ended || interrupt::is_signal_pending() {
            true => Progress::Ended,
            false => Progress::Trains,
        })
    }

    /// Ends the child and removes its folder.
    ///
    /// # Errors
    /// If a signal has arrived.
    pub fn end(mut self, has_failed: bool) -> anyhow::Result<TrialEnd> {
        self.kill();
        let failure = has_failed.then(|| last_line(&self.folder.path().join(LOG)));
        let available = self.available;
        drop(self);
        if interrupt::is_signal_pending() {
            interrupt::exit_on_signal()?;
            bail!("a signal ended the trials of --micro-batch-size auto");
        }
        Ok(TrialEnd { available, failure })
    }

    /// Kills the child, whose ranks end with it, and waits for all of them: the next trial counts on the memory that they had.
    fn kill(&mut self) {
        let processes = processes_with(self.folder.path());
        drop(self.child.kill());
        drop(self.child.wait());
        wait_for(&processes);
    }
}

impl Drop for RunningTrial {
    fn drop(&mut self) {
        self.kill();
        // What outlives the wait may still write.
        for _ in 0..MAX_REMOVALS {
            if std::fs::remove_dir_all(self.folder.path()).is_ok() {
                break;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// What came of a trial whose ranks had this many bytes of memory each.
pub(super) fn outcome(record: &StepRecord, available: Option<u64>) -> TrialOutcome {
    let (memory, has) = match record.device_memory {
        Some(memory) => (memory.reserved_peak, memory.total),
        None => (record.peak_rss_bytes, available),
    };
    match has.filter(|has| memory as f64 > MARGIN * *has as f64) {
        Some(has) => TrialOutcome::TooFull(format!(
            "a rank takes {} of {}, more than {:.0}%",
            HumanBytes(memory),
            HumanBytes(has),
            100.0 * MARGIN
        )),
        None => TrialOutcome::Ran { per_second: record.tokens_per_second, memory },
    }
}

/// What a child said last.
fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let memory = text.lines().find(|line| line.contains(OUT_OF_MEMORY));
    // Indented, a launcher repeats what the rank said that is the root cause.
    let is_message = |line: &&str| line.starts_with("brigade: ") || line.starts_with("error: ");
    let said = memory.or_else(|| text.lines().map(str::trim_start).rfind(is_message));
    let said = said
        .or_else(|| text.lines().rfind(|line| !line.trim().is_empty()))
        .unwrap_or("it ended without printing anything");
    said.trim_start_matches("brigade: ").to_owned()
}
