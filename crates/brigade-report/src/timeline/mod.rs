//! Timelines of steps, in the [trace event format](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) that Perfetto
//! and Chrome open: a process for each rank, and in it a thread for each kind of work.

mod event;
mod tracks;

use std::io::{self, Write};
use std::path::Path;

use brigade_files::AtomicFile;
use serde::{Deserialize, Serialize};

pub use event::{TraceEvent, TracePhase};
pub use tracks::{Track, Tracks};

/// The folder of timelines in a run's folder.
pub const PROFILE_FOLDER: &str = "profile";

/// The name of the file with the timeline of these steps.
pub fn timeline_file(first: u64, last: u64) -> String {
    format!("steps-{first}-{last}.json")
}

/// A timeline of some steps of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// What happened when.
    pub trace_events: Vec<TraceEvent>,
    /// What viewers show times in.
    pub display_time_unit: String,
    /// Whose timeline it is.
    pub other_data: TimelineInfo,
}

/// Whose timeline it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineInfo {
    /// The first step.
    pub first_step: u64,
    /// The last one.
    pub last_step: u64,
    /// The mesh's axes with their sizes, from the outermost on.
    pub mesh: Vec<(String, usize)>,
    /// The names of the model's blocks.
    pub blocks: Vec<String>,
    /// How many of them are in each part of the pipeline.
    pub split: Vec<usize>,
    /// The pipeline's schedule.
    pub schedule: String,
    /// Parts of the model on each rank of the pipeline.
    pub chunks: usize,
    /// Micro-batches of a rank in a step.
    pub micro_batches: usize,
    /// By how much the clocks of two ranks may still be apart, in microseconds.
    pub clock_error_us: f64,
}

impl Timeline {
    /// Writes the events of all ranks, of each as a JSON array, into one file.
    ///
    /// # Errors
    /// If the file cannot be written; no part of it remains then.
    pub fn write(path: &Path, ranks: &[Vec<u8>], info: &TimelineInfo) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = AtomicFile::create(path)?;
        file.write_all(b"{\"traceEvents\":[\n")?;
        // Without their brackets.
        let arrays = ranks.iter().map(|events| events.get(1..events.len() - 1).unwrap_or_default());
        for (index, events) in arrays.filter(|events| !events.is_empty()).enumerate() {
            file.write_all(if index > 0 { b",\n" } else { b"" })?;
            file.write_all(events)?;
        }
        file.write_all(b"\n],\"displayTimeUnit\":\"ms\",\"otherData\":")?;
        serde_json::to_writer(&mut file, info)?;
        file.write_all(b"}\n")?;
        file.commit().map(drop)
    }
}
