//! A run's folder.

mod compared;
mod follower;
mod last_mesh;
mod overview;
mod pace;
mod settings;
mod state;

use std::fs;
use std::path::{Path, PathBuf};

use brigade_report::{
    HISTORY_FILE, HistoryRecord, METRICS_FILE, PLANNED_MEMORY_FILE, PlannedMemory, RunEvent, StepRecord,
    counted,
};

use crate::error::{Error, Result};

pub use compared::Difference;
pub use follower::Follower;
pub use overview::{Overview, overviews};
pub(crate) use overview::{is_run, run_folders};
pub use pace::seconds_per_step;
pub use settings::{Setting, settings_of};
pub use state::RunState;

/// What a run left in its folder so far.
#[derive(Debug, Clone)]
pub struct Run {
    /// The folder.
    pub dir: PathBuf,
    /// The folder's name.
    pub name: String,
    /// The steps, in order, each once.
    pub records: Vec<StepRecord>,
    /// Lines of `metrics.jsonl` that cannot be read, but for a last one that was cut short.
    pub unreadable: usize,
    /// What happened to the run as a whole. Runs of older versions have nothing here.
    pub history: Vec<HistoryRecord>,
    /// The configuration, each setting by its name, in the file's order; empty if there is none.
    pub settings: Vec<Setting>,
    /// What a rank was planned to hold.
    pub planned: Option<PlannedMemory>,
    /// What became of the run.
    pub state: RunState,
}

impl Run {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// If it is not the folder of a run, or the run has no step yet.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut follower = Follower::new(dir);
        follower.poll()?;
        follower.run()
    }

    /// Reads all files but the metrics, which are these.
    fn with_records(dir: &Path, records: Vec<StepRecord>, unreadable: usize) -> Self {
        let text = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let history = history_of(&text(HISTORY_FILE));
        Self {
            name: name_of(dir),
            settings: settings_of(&text("config.toml")),
            planned: serde_json::from_str(&text(PLANNED_MEMORY_FILE)).ok(),
            state: RunState::of(dir, &history, records.last()),
            dir: dir.to_owned(),
            records,
            unreadable,
            history,
        }
    }

    /// A run whose folder is elsewhere: `history` is what its `history.jsonl` says, `last` its last step.
    pub fn of_history(name: &str, history: &str, last: Option<StepRecord>, state: RunState) -> Self {
        Self {
            dir: name.into(),
            name: name.to_owned(),
            records: last.into_iter().collect(),
            unreadable: 0,
            history: history_of(history),
            settings: Vec::new(),
            planned: None,
            state,
        }
    }

    /// That lines of `metrics.jsonl` cannot be read, where some cannot; without a full stop.
    pub fn unreadable_note(&self) -> Option<String> {
        let are = if self.unreadable == 1 { "is" } else { "are" };
        let lines = counted(self.unreadable, "line");
        (self.unreadable > 0).then(|| format!("{lines} of {METRICS_FILE} cannot be read and {are} left out"))
    }

    /// The last start: on how many ranks, and in which mesh. One that found nothing left to do, of a run that had all its steps, does not count.
    pub fn started(&self) -> Option<&RunEvent> {
        self.last_start().map(|index| &self.history[index].event)
    }

    /// Where that is in the history.
    fn last_start(&self) -> Option<usize> {
        let (mut is_finished, mut last) = (false, None);
        let last_step = self.records.last().map_or(0, |record| record.step);
        for (index, record) in self.history.iter().enumerate().rev() {
            match record.event {
                RunEvent::Finished { .. } => is_finished = true,
                RunEvent::Started { resumed_at, .. } => {
                    last = last.or(Some(index));
                    if !(is_finished && resumed_at.is_some_and(|step| step >= last_step)) {
                        return Some(index);
                    }
                }
                _ => {}
            }
        }
        last
    }

    /// The axes of the mesh with their sizes, the outermost first; without a history what a record of all ranks says.
    pub fn mesh(&self) -> Vec<(String, usize)> {
        match self.started() {
            Some(RunEvent::Started { mesh, .. }) => mesh.clone(),
            _ => self.ranks().map(|ranks| ("dp".to_owned(), ranks)).into_iter().collect(),
        }
    }

    /// The mesh's axes with more than one rank, as in `pp 2 dp 4`.
    pub(crate) fn mesh_text(&self) -> String {
        let axes = self.mesh().into_iter().filter(|(_, size)| *size > 1);
        axes.map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(" ")
    }

    /// The number of ranks, where it is known.
    pub fn ranks(&self) -> Option<usize> {
        match self.started() {
            Some(RunEvent::Started { ranks, .. }) => Some(*ranks),
            _ => Some(self.records.iter().rev().find_map(|record| record.rank_seconds.as_ref())?.step.len()),
        }
    }

    /// How many ranks are parameter servers: the last ones.
    pub fn servers(&self) -> usize {
        match self.started() {
            Some(RunEvent::Started { servers, .. }) => *servers,
            _ => 0,
        }
    }

    /// What targets are called: `tokens`, `samples`.
    pub fn unit(&self) -> &str {
        match self.started() {
            Some(RunEvent::Started { unit, .. }) => unit,
            _ => "tokens",
        }
    }

    /// How long a message takes between the ranks in seconds, where they are on several hosts.
    pub fn network_delay(&self) -> Option<f64> {
        match self.started() {
            Some(RunEvent::Started { network_delay_seconds, .. }) => *network_delay_seconds,
            _ => None,
        }
    }

    /// The number of the last step that is asked for.
    pub fn total_steps(&self) -> Option<u64> {
        match self.started() {
            Some(RunEvent::Started { total_steps, .. }) => Some(*total_steps),
            _ => None,
        }
    }

    /// A setting's value as TOML has it, by its name (`train.steps`).
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|setting| setting.name == name).map(|setting| setting.value.as_str())
    }

    /// The pipeline stage of a rank, where the run has several.
    pub fn stage(&self, rank: usize) -> Option<usize> {
        let mesh = self.mesh();
        let at = mesh.iter().position(|(axis, size)| axis == "pp" && *size > 1)?;
        let inner: usize = mesh[at + 1..].iter().map(|(_, size)| size).product();
        Some(rank / inner.max(1) % mesh[at].1)
    }
}

/// The lines of a history that can be read.
fn history_of(text: &str) -> Vec<HistoryRecord> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The last part of a folder's path.
pub(crate) fn name_of(dir: &Path) -> String {
    let whole = || fs::canonicalize(dir).ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let own = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    own.or_else(whole).unwrap_or_else(|| dir.display().to_string())
}

/// The path of a run's metrics.
///
/// # Errors
/// If the folder, or the file in it, is not there.
fn metrics_file(dir: &Path) -> Result<PathBuf> {
    if !dir.is_dir() {
        return Err(Error::NoFolder { path: dir.to_owned() });
    }
    let path = dir.join(METRICS_FILE);
    if path.is_file() { Ok(path) } else { Err(Error::NoMetrics { path: dir.to_owned() }) }
}
