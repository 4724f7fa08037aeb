//! The runs of a folder, each in a line.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use brigade_report::{HISTORY_FILE, METRICS_FILE, StepRecord};

use super::Run;
use crate::error::{Error, Result};

/// Enough of a file's end for its last lines.
const TAIL: u64 = 1 << 18;

/// As many of them say how long a step takes.
const LAST: usize = 16;

/// A run in its last figures.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The run with only its last steps, and with the unreadable lines among the last 256 KiB of its metrics.
    pub run: Run,
}

impl Overview {
    /// The last step, if there is one.
    pub fn last(&self) -> Option<&StepRecord> {
        self.run.records.last()
    }
}

/// The runs in a folder: the folders in it that have metrics or a history, or the folder itself if it has, in the order of their names; and why those that cannot be
/// read cannot.
///
/// # Errors
/// If the folder cannot be read.
pub fn overviews(folder: &Path) -> Result<Vec<Result<Overview>>> {
    Ok(run_folders(folder)?.iter().map(|dir| overview(dir)).collect())
}

/// The folders of runs in a folder, or itself.
///
/// # Errors
/// If the folder cannot be read.
pub(crate) fn run_folders(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Err(Error::NoFolder { path: folder.to_owned() });
    }
    if is_run(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = fs::read_dir(folder).map_err(Error::file(folder))?;
    let mut runs: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|dir| is_run(dir)).collect();
    runs.sort();
    Ok(runs)
}

/// Whether a folder is that of a run, which may have no metrics yet.
pub(crate) fn is_run(dir: &Path) -> bool {
    [METRICS_FILE, HISTORY_FILE].iter().any(|file| dir.join(file).is_file())
}

fn overview(dir: &Path) -> Result<Overview> {
    let path = dir.join(METRICS_FILE);
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Overview { run: Run::with_records(dir, Vec::new(), 0) });
        }
        file => file.map_err(Error::file(&path))?,
    };
    let length = file.metadata().map_err(Error::file(&path))?.len();
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).map_err(Error::file(&path))?;
    file.read_to_end(&mut text).map_err(Error::file(&path))?;
    let record = |line: &[u8]| serde_json::from_slice::<StepRecord>(line).ok();
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // The last line may not be whole yet, and the first one may have begun earlier.
    let unfinished = lines.pop();
    let begin = usize::from(length > TAIL).min(lines.len());
    let (mut last, mut unreadable) = (Vec::new(), 0);
    for line in lines[begin..].iter().filter(|line| !line.iter().all(u8::is_ascii_whitespace)) {
        match record(line) {
            Some(record) => last.push(record),
            None => unreadable += 1,
        }
    }
    last.extend(unfinished.and_then(record));
    last.drain(..last.len().saturating_sub(LAST));
    Ok(Overview { run: Run::with_records(dir, last, unreadable) })
}
