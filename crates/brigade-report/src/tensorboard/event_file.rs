//! One event file of TensorBoard.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{
    protobuf::{bytes_field, event, record, summary},
    scalars::{checkpoint_scalars, step_scalars, validation_scalars},
};
use crate::{
    error::{Error, Result},
    metrics_file::append,
    record::{CheckpointRecord, StepRecord},
};

/// The beginning of every event file's name.
const PREFIX: &str = "events.out.tfevents.";

/// The event files in a folder, in order of their names.
pub fn existing(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(Error::file("read", folder))?;
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    let mut files: Vec<PathBuf> =
        entries.iter().filter(|entry| named(entry)).map(fs::DirEntry::path).collect();
    files.sort();
    Ok(files)
}

/// An event file, `events.out.tfevents.<seconds>.<host>.<process id>`. Each event is written with one unbuffered call.
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Creates a new file in the folder and writes the version record. Its name sorts after those of earlier files, even
    /// if these are from this second or from a host whose clock is ahead.
    pub fn create(folder: &Path, earlier: &[PathBuf]) -> Result<Self> {
        let time = now();
        let latest = earlier.iter().filter_map(|path| seconds(path)).max();
        let seconds = time.as_secs().max(latest.map_or(0, |latest| latest.saturating_add(1)));
        let name = format!("{PREFIX}{seconds}.{}.{}", host(), std::process::id());
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(Error::file("create", &path))?;
        let mut events = Self { path, file };
        let mut version = event(time, 0);
        bytes_field(&mut version, 3, b"brain.Event:2");
        events.append(&record(&version))?;
        Ok(events)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says that what follows starts at this step, and replaces what was written for it and for later ones.
    pub fn start_at(&mut self, step: u64) -> Result<()> {
        let mut data = event(now(), step);
        // SessionLog { 1: status (varint) }, of which START is 1.
        bytes_field(&mut data, 7, &[1 << 3, 1]);
        self.append(&record(&data))
    }

    /// Writes the scalars of a step, and those of its checkpoint.
    pub fn write(&mut self, step: &StepRecord) -> Result<()> {
        self.append(&record(&summary(now(), step.step, step_scalars(step))))?;
        step.checkpoint.iter().try_for_each(|checkpoint| self.write_checkpoint(checkpoint))
    }

    /// Writes the scalars of a step's validation alone.
    pub fn write_validation(&mut self, step: &StepRecord) -> Result<()> {
        self.append(&record(&summary(now(), step.step, validation_scalars(step))))
    }

    /// Writes the scalars of a checkpoint, at the step that it holds.
    pub fn write_checkpoint(&mut self, checkpoint: &CheckpointRecord) -> Result<()> {
        self.append(&record(&summary(now(), checkpoint.step, checkpoint_scalars(checkpoint))))
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        append(&mut self.file, bytes).map_err(Error::file("write", &self.path))
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time in an event file's name, in seconds since 1970.
fn seconds(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

/// This machine's name, with the characters that a file name may have.
fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fit = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = name.chars().take(100).map(fit).collect();
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests;
