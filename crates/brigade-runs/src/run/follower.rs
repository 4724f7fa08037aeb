//! The metrics of a run that may still be writing them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use brigade_report::StepRecord;

use super::state::is_in_progress;
use super::{Run, metrics_file};
use crate::error::{Error, Result};

/// Reads what a run adds to its metrics, and starts again where the run replaced the file: after a validation, a rollback or a
/// resume.
#[derive(Debug)]
pub struct Follower {
    dir: PathBuf,
    /// Which file was read, and up to where: the end of the last whole line.
    inode: u64,
    end: u64,
    /// That line: another file may get the inode of one that is gone, and a file may be emptied and written again.
    line: Vec<u8>,
    records: Vec<StepRecord>,
    lines: usize,
    unreadable: usize,
    /// The last line, if it has no end yet but is whole.
    last: Option<StepRecord>,
    /// What tells whether anything changed.
    seen: Option<Seen>,
}

/// What tells whether anything changed: the file, its bytes and when it changed, the bytes of other files, and whether the run is in progress.
type Seen = (u64, u64, (i64, i64), Vec<Option<u64>>, bool);

impl Follower {
    /// Of the run in a folder, which need not be there yet.
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            inode: 0,
            end: 0,
            line: Vec::new(),
            records: Vec::new(),
            lines: 0,
            unreadable: 0,
            last: None,
            seen: None,
        }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The steps so far.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &StepRecord> {
        self.records.iter().chain(&self.last)
    }

    /// Reads what is new. Whether anything changed since the last time: steps, or what became of the run.
    ///
    /// # Errors
    /// If the metrics are not there or cannot be read.
    pub fn poll(&mut self) -> Result<bool> {
        let path = metrics_file(&self.dir)?;
        let mut file = File::open(&path).map_err(Error::file(&path))?;
        let metadata = file.metadata().map_err(Error::file(&path))?;
        let others = ["history.jsonl", "config.toml", "logs/memory-plan.json", "model.safetensors"];
        let size = |name: &str| fs::metadata(self.dir.join(name)).ok().map(|found| found.len());
        let changed = (metadata.mtime(), metadata.mtime_nsec());
        let in_progress = is_in_progress(&self.dir, self.records().next_back());
        let seen = (metadata.ino(), metadata.len(), changed, others.map(size).to_vec(), in_progress);
        if self.seen.as_ref() == Some(&seen) {
            return Ok(false);
        }
        let continues =
            metadata.ino() == self.inode && self.has_line(&mut file).map_err(Error::file(&path))?;
        if !continues {
            *self = Self { inode: metadata.ino(), ..Self::new(&self.dir) };
        }
        self.seen = Some(seen);
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.end)).map_err(Error::file(&path))?;
        file.read_to_end(&mut text).map_err(Error::file(&path))?;
        self.add(&text);
        Ok(true)
    }

    /// Whether the last line that was read is still where it was.
    fn has_line(&self, file: &mut File) -> io::Result<bool> {
        let length = self.line.len() as u64;
        file.seek(SeekFrom::Start(self.end - length))?;
        let mut there = Vec::new();
        file.take(length).read_to_end(&mut there)?;
        Ok(there == self.line)
    }

    /// Takes whole lines. One without an end is not taken before it has one, but counts if it can be read.
    fn add(&mut self, text: &[u8]) {
        self.last = None;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            // Nothing can be said of a step that took no time.
            let record = serde_json::from_slice::<StepRecord>(line)
                .ok()
                .filter(|record| record.step_seconds.is_finite() && record.step_seconds > 0.0);
            if !line.ends_with(b"\n") {
                self.last = record;
                break;
            }
            self.end += line.len() as u64;
            self.line = line.to_vec();
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            self.lines += 1;
            match record {
                Some(record) => {
                    // Of a step that stands there twice, the later line counts.
                    self.records.truncate(self.records.partition_point(|there| there.step < record.step));
                    self.records.push(record);
                }
                None => self.unreadable += 1,
            }
        }
    }

    /// The run as it is now.
    ///
    /// # Errors
    /// If it has no step yet.
    pub fn run(&self) -> Result<Run> {
        let records: Vec<StepRecord> = self.records().cloned().collect();
        if records.is_empty() {
            let path = metrics_file(&self.dir)?;
            return Err(Error::NoSteps { path, lines: self.lines });
        }
        Ok(Run::with_records(&self.dir, records, self.unreadable))
    }
}
