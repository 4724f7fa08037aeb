//! `metrics.jsonl`: one JSON object a line, in order of steps.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use brigade_files::AtomicFile;
use serde::Deserialize;

use crate::{
    error::{Error, Result},
    record::StepRecord,
};

/// A file with one JSON object a line. Each line is written with one unbuffered call, so it is complete and
/// can be read at once.
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Creates the file. It is an error if there is one already, unless it may be overwritten.
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

    /// Continues the file after a step, without the lines that [`cut`] removes; creates it if it is missing.
    pub fn resume(path: PathBuf, last_step: u64) -> Result<Self> {
        if fs::exists(&path).map_err(Error::file("read", &path))? {
            let file = cut(&path, last_step, &[])?;
            Ok(Self { path, file })
        } else {
            Self::create(path, false)
        }
    }

    /// Removes the lines that [`cut`] removes.
    pub fn rewind(&mut self, last_step: u64) -> Result<()> {
        self.file = cut(&self.path, last_step, &[])?;
        Ok(())
    }

    /// Writes the line of the last step again; whatever happens, the file has the former line or the new one.
    pub fn replace_last(&mut self, record: &StepRecord) -> Result<()> {
        let line = line(record).map_err(Error::file("write", &self.path))?;
        self.file = cut(&self.path, record.step.saturating_sub(1), &line)?;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&mut self, record: &StepRecord) -> Result<()> {
        let written = line(record).and_then(|line| append(&mut self.file, &line));
        written.map_err(Error::file("write", &self.path))
    }
}

fn line(record: &StepRecord) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

/// Appends all or nothing: after a partial line or record a reader could not continue.
pub(crate) fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    // Where lines are appended, also those of others, the position is not the end before the first one.
    let end = file.seek(SeekFrom::End(0));
    file.write_all(bytes).inspect_err(|_| {
        if let Ok(end) = end {
            drop(file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))));
        }
    })
}

/// Removes the lines of later steps than `last_step`, and a last line that was cut short, and adds `new` ones; returns the file for
/// further lines. A line whose step cannot be read is kept or removed with the line before it.
///
/// What stays is an [`AtomicFile`]: whatever happens, the file is as before or as after. A process that still has the former file open no longer reaches the new one.
fn cut(path: &Path, last_step: u64, new: &[u8]) -> Result<File> {
    let lines = File::open(path).map_err(Error::file("read", path))?;
    let mut kept = AtomicFile::create(path).map_err(Error::file("replace", path))?;
    copy(path, lines, &mut kept, last_step)?;
    kept.write_all(new).map_err(Error::file("replace", path))?;
    kept.commit().map_err(Error::file("replace", path))
}

/// Copies the lines that are kept.
fn copy(path: &Path, lines: File, kept: &mut AtomicFile, last_step: u64) -> Result<()> {
    /// The part of a line that has its step.
    #[derive(Deserialize)]
    struct Numbered {
        step: u64,
    }

    let (mut lines, mut writer) = (BufReader::new(lines), BufWriter::new(kept));
    let (mut line, mut keep) = (Vec::new(), true);
    while lines.read_until(b'\n', &mut line).map_err(Error::file("read", path))? > 0 {
        let ended = line.ends_with(b"\n");
        match serde_json::from_slice(&line) {
            Ok(Numbered { step }) => keep = step <= last_step,
            Err(_) => keep &= ended,
        }
        if !ended {
            line.push(b'\n');
        }
        if keep {
            writer.write_all(&line).map_err(Error::file("replace", path))?;
        }
        line.clear();
    }
    writer.flush().map_err(Error::file("replace", path))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut lines = JsonLines::create(path.clone(), false).unwrap();
        let records = [0.1, 1.0 / 3.0].map(|loss| StepRecord { loss, step: 7, ..StepRecord::default() });
        for record in &records {
            lines.write(record).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let read: Vec<StepRecord> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, records);
        assert!(matches!(JsonLines::create(path.clone(), false), Err(Error::Exists { .. })));
        JsonLines::create(path.clone(), true).unwrap();
        assert_eq!(fs::read(path).unwrap(), b"");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_names_the_file() {
        let mut lines = JsonLines::create("/dev/full".into(), true).unwrap();
        let message = lines.write(&StepRecord::default()).unwrap_err().to_string();
        assert!(message.contains("write /dev/full") && message.contains("No space left"), "{message}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_cannot_be_appended_costs_no_earlier_line() {
        use std::os::unix::fs::FileExt;

        use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, memfd_create};

        let memory = memfd_create("history", MemfdFlags::ALLOW_SEALING).unwrap();
        let mut file = File::from(memory);
        // Of another process: this one has written nothing yet.
        file.write_all_at(b"one\n", 0).unwrap();
        fcntl_setfl(&file, OFlags::APPEND).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW).unwrap();
        append(&mut file, b"two\n").unwrap_err();
        let mut left = [0; 8];
        let count = file.read_at(&mut left, 0).unwrap();
        assert_eq!(&left[..count], b"one\n");
    }

    /// What remains of a text after resuming at a step, with the number of files in the folder.
    fn resumed(text: &str, last_step: u64) -> (String, usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, text).unwrap();
        JsonLines::resume(path.clone(), last_step).unwrap();
        (fs::read_to_string(path).unwrap(), fs::read_dir(folder.path()).unwrap().count())
    }

    #[test]
    fn a_line_without_a_step_is_treated_as_the_one_before() {
        let text = "# by hand\n{\"step\":1}\n\n{\"note\":\"x\"}\n{\"step\":2,\"st\n{\"step\":3}\n{\"step\":\"4\"}\n{\"ste";
        let kept = |n: usize| text.split_inclusive('\n').take(n).collect::<String>();
        let expected = [1, 5, 5, 7, 7].map(|n| (kept(n), 1));
        assert_eq!([0, 1, 2, 3, 9].map(|last| resumed(text, last)), expected);
    }

    #[test]
    fn a_last_line_without_a_newline_is_kept_if_it_is_json() {
        assert_eq!(resumed("{\"step\":1}\n{\"step\":2}", 2).0, "{\"step\":1}\n{\"step\":2}\n");
        assert_eq!(resumed("{\"step\":1}\n{\"step\":2}", 1).0, "{\"step\":1}\n");
        assert_eq!(resumed("{\"step\":1}\n\0\0\0", 1).0, "{\"step\":1}\n");
    }

    #[test]
    fn a_file_that_cannot_be_cut_is_named_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::create_dir(&path).unwrap();
        let message = JsonLines::resume(path.clone(), 1).err().unwrap().to_string();
        assert!(message.contains("cannot replace") && message.contains("metrics.jsonl:"), "{message}");
        assert!(path.is_dir() && fs::read_dir(folder.path()).unwrap().count() == 1);
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "{\"step\":1}\n").unwrap();
        let mut lines = JsonLines::resume(path.clone(), 1).unwrap();
        let moved = folder.path().join("moved.jsonl");
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        lines.rewind(0).unwrap_err();
        lines.write(&StepRecord { step: 2, ..StepRecord::default() }).unwrap();
        assert_eq!(fs::read_to_string(moved).unwrap().lines().count(), 2, "a failed cut changes nothing");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

        /// A run with jumps and repeats, cut short at any byte, leaves exactly the whole lines up to the step, and goes
        /// on after them.
        #[test]
        fn exactly_the_lines_up_to_the_step(
            steps in prop::collection::vec(0u64..12, 0..12),
            cut in any::<prop::sample::Index>(),
            last_step in 0u64..13,
            back in 0u64..13,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("metrics.jsonl");
            let line = |step: u64| {
                let record = StepRecord { step, loss: 1.0 / (step as f64), ..StepRecord::default() };
                serde_json::to_string(&record).unwrap() + "\n"
            };
            let whole: String = steps.iter().map(|step| line(*step)).collect();
            let end = cut.index(whole.len() + 1);
            fs::write(&path, &whole[..end]).unwrap();
            let mut length = 0;
            let mut expected = vec![];
            for step in steps {
                length += line(step).len();
                // A line that lacks its newline alone is whole.
                if length <= end + 1 && step <= last_step {
                    expected.push(step);
                }
            }
            let text = |steps: &[u64]| steps.iter().map(|step| line(*step)).collect::<String>();
            let mut lines = JsonLines::resume(path.clone(), last_step).unwrap();
            prop_assert_eq!(fs::read_to_string(&path).unwrap(), text(&expected));
            let next = StepRecord { step: 12, loss: 1.0 / 12.0, ..StepRecord::default() };
            lines.write(&next).unwrap();
            expected.push(12);
            prop_assert_eq!(fs::read_to_string(&path).unwrap(), text(&expected));
            lines.rewind(back).unwrap();
            expected.retain(|step| *step <= back);
            prop_assert_eq!(fs::read_to_string(&path).unwrap(), text(&expected));
        }
    }
}
