//! One JSON object a line.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{Error, Result, StepRecord};

/// A file with one JSON object a line. Each line is written with one call and unbuffered, so it is whole and
/// can be read at once.
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Makes the file; one that is there already is an error unless it may be overwritten.
    pub fn create(path: PathBuf, overwrite: bool) -> Result<Self> {
        let mut options = OpenOptions::new();
        match overwrite {
            true => options.write(true).create(true).truncate(true),
            false => options.write(true).create_new(true),
        };
        match options.open(&path) {
            Ok(file) => Ok(Self { path, file }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists { path }),
            Err(error) => Err(Error::file("create", path)(error)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&mut self, record: &StepRecord) -> Result<()> {
        let line = serde_json::to_vec(record).map_err(io::Error::from);
        let written = line.and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)
        });
        written.map_err(Error::file("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_went() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut lines = JsonLines::create(path.clone(), false).unwrap();
        let records = [0.1, 1.0 / 3.0].map(|loss| StepRecord { loss, step: 7, ..StepRecord::default() });
        for record in &records {
            lines.write(record).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let read: Vec<StepRecord> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, records);
        assert!(matches!(JsonLines::create(path.clone(), false), Err(Error::Exists { .. })));
        JsonLines::create(path.clone(), true).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_names_the_file() {
        let mut lines = JsonLines::create("/dev/full".into(), true).unwrap();
        let message = lines.write(&StepRecord::default()).unwrap_err().to_string();
        assert!(message.contains("write /dev/full") && message.contains("No space left"), "{message}");
    }
}
