//! `history.jsonl`: when a run began, went back and ended, and on how many ranks; one JSON object a line.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    metrics_file::append,
    reporter::ReporterOptions,
};

/// The name of the file with one JSON object for each start, rollback and end of a run.
pub const HISTORY_FILE: &str = "history.jsonl";

/// Something that happened to a run as a whole: a line of `history.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// When, in seconds since 1970.
    pub time: f64,
    /// What.
    #[serde(flatten)]
    pub event: RunEvent,
}

/// What may happen to a run as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// The run has its folder, and its ranks make ready for their first step.
    Launched,
    /// The ranks are ready for their first step.
    Started {
        /// Their number.
        ranks: usize,
        /// The axes of the mesh with their sizes, the outermost first: ranks are numbered in row-major order.
        mesh: Vec<(String, usize)>,
        /// How many of them, the last ones, are parameter servers.
        #[serde(default, skip_serializing_if = "is_zero")]
        servers: usize,
        /// The number of the last step.
        total_steps: u64,
        /// What targets are called, in the plural.
        unit: String,
        /// What the ranks compute on, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        devices: Option<String>,
        /// How long a message of a few bytes takes between the ranks that are furthest from each other, where they are on several hosts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        network_delay_seconds: Option<f64>,
        /// How often the launcher has started them again.
        restart: u32,
        /// The step of the checkpoint that they resumed from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resumed_at: Option<u64>,
    },
    /// The ranks went back to a checkpoint because something was not finite.
    RolledBack {
        /// The checkpoint's step.
        step: u64,
    },
    /// The run is over, and its weights are written.
    Finished {
        /// Its last step.
        step: u64,
        /// Why that is not the last one that was asked for, if so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended_early: Option<String>,
    },
    /// The ranks saved a checkpoint and ended, because their machine is taken away.
    Preempted,
    /// A rank failed, and the launcher starts the ranks again.
    Restarting {
        /// The number of the restart, from 1.
        restart: u32,
        /// What failed.
        reason: String,
    },
    /// A node of an elastic run was lost, or told to leave; the others continue without it.
    NodeLeft {
        /// Its `--node-rank`, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<usize>,
        /// Its host, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// How that was noticed.
        reason: String,
    },
    /// A node takes part in an elastic run from its next start on.
    NodeJoined {
        /// Its `--node-rank`.
        node: usize,
        /// Its host.
        host: String,
    },
    /// A rank failed, and the run is over.
    Failed {
        /// What failed.
        reason: String,
    },
    /// A signal ended the run.
    Interrupted {
        /// The signal's name.
        signal: String,
    },
}

impl RunEvent {
    /// What happened to the nodes of an elastic run, in words; none for any other event.
    pub fn of_nodes(&self) -> Option<String> {
        match self {
            Self::NodeLeft { node, host, reason } => {
                let name = node.map_or("a node".to_owned(), |node| format!("node {node}"));
                let host = host.as_ref().map_or_else(String::new, |host| format!(" ({host})"));
                Some(format!("{name}{host} left: {reason}"))
            }
            Self::NodeJoined { node, host } => Some(format!("node {node} ({host}) joined")),
            _ => None,
        }
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Writes down that a run has its folder, which may have the history of earlier launches.
///
/// # Errors
/// If the file cannot be written.
pub fn add_launch_to_history(folder: &Path) -> Result<()> {
    History::open(folder.join(HISTORY_FILE))?.add(RunEvent::Launched)
}

/// Adds an event to the history in a run's folder, unless it is the last one there already. If nothing was added since `began` (seconds since 1970),
/// the history is that of an earlier launch, which nothing happened to.
///
/// # Errors
/// If the file cannot be read or written.
pub fn add_to_history(folder: &Path, began: f64, event: RunEvent) -> Result<()> {
    let path = folder.join(HISTORY_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::file("read", path)(error)),
    };
    // A line that was cut short says nothing of those before it.
    let last = text.lines().rev().find_map(|line| serde_json::from_str::<HistoryRecord>(line).ok());
    if last.is_none_or(|last| last.time < began || last.event == event) {
        return Ok(());
    }
    History::open(path)?.add(event)
}

/// The history of a run that is being written.
pub struct History {
    path: PathBuf,
    file: File,
}

impl History {
    /// Writes the start of a run. One that is resumed or was restarted adds to the file that is there, any other replaces it.
    pub fn begin(folder: &Path, options: &ReporterOptions, resumed_at: Option<u64>) -> Result<Self> {
        let path = folder.join(HISTORY_FILE);
        if resumed_at.is_none() && options.restart == 0 {
            File::create(&path).map_err(Error::file("create", &path))?;
        }
        let mut history = Self::open(path)?;
        history.add(RunEvent::Started {
            ranks: options.compute.ranks,
            mesh: options.mesh.clone(),
            servers: options.servers,
            total_steps: options.total_steps,
            unit: options.unit.clone(),
            devices: options.devices.clone(),
            network_delay_seconds: options.network_delay.map(|delay| delay.as_secs_f64()),
            restart: options.restart,
            resumed_at,
        })?;
        Ok(history)
    }

    /// Opens a history for more lines. One that was cut short, because a machine stopped, ends here.
    fn open(path: PathBuf) -> Result<Self> {
        let opened = || -> io::Result<File> {
            let mut file = OpenOptions::new().append(true).read(true).create(true).open(&path)?;
            let mut last = [b'\n'];
            if let Some(at) = file.metadata()?.len().checked_sub(1) {
                file.read_exact_at(&mut last, at)?;
            }
            if last != *b"\n" {
                append(&mut file, b"\n")?;
            }
            Ok(file)
        };
        let file = opened().map_err(Error::file("open", &path))?;
        Ok(Self { path, file })
    }

    pub fn add(&mut self, event: RunEvent) -> Result<()> {
        let record = HistoryRecord { time: now(), event };
        let written = serde_json::to_vec(&record).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            append(&mut self.file, &line)
        });
        written.map_err(Error::file("write", &self.path))
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(folder: &Path) -> Vec<RunEvent> {
        let text = fs::read_to_string(folder.join(HISTORY_FILE)).unwrap();
        text.lines().map(|line| serde_json::from_str::<HistoryRecord>(line).unwrap().event).collect()
    }

    #[test]
    fn what_ends_before_its_first_step_is_not_taken_for_an_earlier_launch() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let failed = |reason: &str| RunEvent::Failed { reason: reason.into() };
        for reason in ["first", "second"] {
            let began = now();
            add_launch_to_history(folder).unwrap();
            add_to_history(folder, began, failed(reason)).unwrap();
        }
        let launched = RunEvent::Launched;
        assert_eq!(events(folder), [launched.clone(), failed("first"), launched, failed("second")]);
    }

    #[test]
    fn a_resumed_run_adds_to_its_history_and_a_new_one_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        add_to_history(folder, 0.0, RunEvent::Preempted).unwrap();
        assert!(!folder.join(HISTORY_FILE).exists(), "a run that never began has none");
        let started = |restart, resumed_at| RunEvent::Started {
            ranks: 1,
            mesh: vec![("pp".into(), 2), ("dp".into(), 2)],
            servers: 0,
            total_steps: 0,
            unit: "tokens".into(),
            devices: None,
            network_delay_seconds: None,
            restart,
            resumed_at,
        };
        let mesh = vec![("pp".into(), 2), ("dp".into(), 2)];
        let mut options = ReporterOptions { mesh, ..ReporterOptions::default() };
        let mut first = History::begin(folder, &options, None).unwrap();
        first.add(RunEvent::RolledBack { step: 2 }).unwrap();
        let failed = RunEvent::Failed { reason: "rank 1\nended".into() };
        add_to_history(folder, 0.0, failed.clone()).unwrap();
        add_to_history(folder, now() + 1.0, failed.clone()).unwrap();
        add_to_history(folder, 0.0, failed.clone()).unwrap();
        History::begin(folder, &options, Some(3)).unwrap();
        options.restart = 1;
        History::begin(folder, &options, None).unwrap();
        let back = RunEvent::RolledBack { step: 2 };
        assert_eq!(events(folder), [started(0, None), back, failed, started(0, Some(3)), started(1, None)]);
        options.restart = 0;
        History::begin(folder, &options, None).unwrap();
        assert_eq!(events(folder), [started(0, None)]);
        // A machine stopped in mid-line.
        let path = folder.join(HISTORY_FILE);
        let cut = fs::read_to_string(&path).unwrap() + "{\"time\": 17";
        for add in [true, false] {
            fs::write(&path, &cut).unwrap();
            match add {
                true => add_to_history(folder, 0.0, RunEvent::Preempted).unwrap(),
                false => drop(History::begin(folder, &options, Some(3)).unwrap()),
            }
            let text = fs::read_to_string(&path).unwrap();
            let added = if add { RunEvent::Preempted } else { started(0, Some(3)) };
            let read = text.lines().filter_map(|line| serde_json::from_str::<HistoryRecord>(line).ok());
            assert_eq!(read.map(|record| record.event).collect::<Vec<_>>(), [started(0, None), added]);
        }
    }
}
