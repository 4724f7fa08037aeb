//! The output of a rank: into its log, and to the terminal.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::lines::Lines;
use crate::{
    Error, ExitReason, Result,
    launcher::{config::LineFormat, outcome::failure::error_line},
};

/// The most lines of a rank's output that a report shows.
const LAST_LINES: usize = 12;
/// The most lines of a panic's text that a report shows.
const PANIC_LINES: usize = 6;
/// The most bytes of a line that a report shows.
const SHOWN_BYTES: usize = 500;

/// The log of one rank, `<log_dir>/rank-<r>.log`: standard output and standard error, line by line, in order
/// of arrival.
pub struct Log {
    path: PathBuf,
    format: Option<LineFormat>,
    state: Mutex<State>,
}

struct State {
    file: Option<File>,
    last: VecDeque<String>,
    panic: Vec<String>,
    in_panic: bool,
    in_backtrace: bool,
}

impl Log {
    /// Whether an earlier start has left something in the log.
    pub fn has_lines(folder: &Path, rank: usize) -> bool {
        Self::path_of(folder, rank).metadata().is_ok_and(|file| file.len() > 0)
    }

    fn path_of(folder: &Path, rank: usize) -> PathBuf {
        folder.join(format!("rank-{rank}.log"))
    }

    /// Makes the log, or appends to it if there is a `separator`, the line that names the restart.
    pub fn create(folder: &Path, rank: usize, separator: Option<&str>) -> Result<Self> {
        let path = Self::path_of(folder, rank);
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Log { path, source }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        if separator.is_none() {
            File::create(&path).map_err(failed(&path))?;
        }
        let mut file = OpenOptions::new().append(true).create(true).open(&path).map_err(failed(&path))?;
        if let Some(separator) = separator {
            writeln!(file, "{separator}").map_err(failed(&path))?;
        }
        let state = State {
            file: Some(file),
            last: VecDeque::new(),
            panic: vec![],
            in_panic: false,
            in_backtrace: false,
        };
        Ok(Self { path, format: None, state: Mutex::new(state) })
    }

    /// The same log, whose lines are in a format.
    pub fn with_format(self, format: Option<LineFormat>) -> Self {
        Self { format, ..self }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the first panic and the last lines.
    pub fn excerpt(&self) -> (Vec<String>, Vec<String>) {
        let state = self.lock();
        (state.panic.clone(), state.last.iter().cloned().collect())
    }

    /// The last line that reports an error; where none does, the last one that is not blank, unless the process was killed.
    pub fn error_line(&self, reason: ExitReason) -> Option<String> {
        let state = self.lock();
        error_line(reason, &state.panic, state.last.iter().rev().map(String::as_str))
    }

    /// Adds a line. The first error (a full disk) is returned; after it the lines are only kept for the report.
    fn add(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let message = self.format.and_then(|format| (format.read)(&String::from_utf8_lossy(line)));
        let text = message.as_ref().map_or(line, |message| message.as_bytes());
        let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]).into_owned();
        state.watch_for_panic(&shown);
        if !state.is_of_backtrace(&shown) {
            if state.last.len() == LAST_LINES {
                state.last.pop_front();
            }
            state.last.push_back(shown);
        }
        let Some(file) = &mut state.file else { return Ok(()) };
        let result = file.write_all(&[line, b"\n"].concat());
        if result.is_err() {
            state.file = None;
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Keeps the first panic: `thread 'main' (1) panicked at file:line:column:` and the lines that follow.
    fn watch_for_panic(&mut self, line: &str) {
        if self.panic.is_empty() && line.starts_with("thread '") && line.contains(" panicked at ") {
            self.in_panic = true;
        } else if line.starts_with("note: run with") || line.starts_with("stack backtrace:") {
            self.in_panic = false;
        }
        if self.in_panic && self.panic.len() < PANIC_LINES {
            self.panic.push(line.to_owned());
        }
    }

    /// Whether a line is of a backtrace (`RUST_BACKTRACE=1`), whose many frames would push the cause out of the last lines.
    fn is_of_backtrace(&mut self, line: &str) -> bool {
        self.in_backtrace = match line {
            "stack backtrace:" => true,
            _ => self.in_backtrace && (line.starts_with(' ') || line.starts_with("note: ")),
        };
        self.in_backtrace
    }
}

/// One of the launcher's own streams.
#[derive(Clone, Copy)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    /// Writes and flushes. Errors are dropped: a run continues without its terminal.
    fn write(self, bytes: &[u8]) {
        let written = match self {
            Self::Out => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Self::Err => io::stderr().lock().write_all(bytes),
        };
        drop(written);
    }
}

/// How much of a rank's output the launcher prints.
pub enum Echo {
    /// Nothing.
    None,
    /// Every byte as it comes.
    Through(Stream),
    /// Whole lines, each with the rank before it.
    Lines(Stream, usize),
    /// Whole lines, each as the format makes it of the rank and the line.
    Formatted(Stream, usize, LineFormat),
}

/// Copies a rank's stream until its end. `lost` is called once if the log can no longer be written; the
/// stream is still read, so that the rank does not block.
pub fn copy_output(mut source: impl Read, log: &Log, echo: &Echo, mut lost: impl FnMut(io::Error)) {
    let mut lines = Lines::default();
    let mut emit = |line: &[u8]| {
        match echo {
            Echo::Lines(stream, rank) => {
                stream.write(&[format!("[rank {rank}] ").as_bytes(), line, b"\n"].concat());
            }
            Echo::Formatted(stream, rank, format) => {
                let line = (format.write)(*rank, &String::from_utf8_lossy(line));
                stream.write(format!("{line}\n").as_bytes());
            }
            Echo::None | Echo::Through(_) => {}
        }
        if let Err(error) = log.add(line) {
            lost(error);
        }
    };
    let mut buffer = [0u8; 16 << 10];
    loop {
        match source.read(&mut buffer) {
            // A pseudo-terminal ends with an error (EIO) when nobody has it open any more.
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
            Ok(n) => {
                if let Echo::Through(stream) = echo {
                    stream.write(&buffer[..n]);
                }
                lines.push(&buffer[..n], &mut emit);
            }
        }
    }
    lines.finish(&mut emit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines_and_the_first_panic() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::create(&folder.path().join("deep/logs"), 3, None).unwrap();
        let text: String = (0..20).map(|i| format!("line {i}\n")).collect::<String>()
            + "thread 'main' (7) panicked at src/a.rs:1:2:\nthe reason\nnote: run with `RUST_BACKTRACE=1`\nend";
        copy_output(text.as_bytes(), &log, &Echo::None, |error| panic!("{error}"));
        assert_eq!(fs::read_to_string(log.path()).unwrap(), text + "\n");
        let (panic, last) = log.excerpt();
        assert_eq!(panic, ["thread 'main' (7) panicked at src/a.rs:1:2:", "the reason"]);
        assert_eq!((last.len(), last.last().unwrap().as_str()), (LAST_LINES, "end"));
        assert_eq!(log.error_line(ExitReason::Code(1)).unwrap(), "the reason");
    }

    #[test]
    fn a_backtrace_leaves_room_for_what_came_before() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::create(folder.path(), 0, None).unwrap();
        let frames: String =
            (0..30).map(|i| format!("  {i:2}: f{i}\n             at ./a.rs:1:2\n")).collect();
        let text = format!(
            "step 3\nmemory allocation of 64 bytes failed\nstack backtrace:\n{frames}note: Some details are omitted\nend\n"
        );
        copy_output(text.as_bytes(), &log, &Echo::None, |error| panic!("{error}"));
        assert_eq!(log.excerpt().1, ["step 3", "memory allocation of 64 bytes failed", "end"]);
        assert_eq!(fs::read_to_string(log.path()).unwrap(), text);
    }

    #[test]
    fn a_restarted_rank_appends_to_its_log() {
        let folder = tempfile::tempdir().unwrap();
        for (separator, text) in
            [(None, "old\n"), (None, "a\nError: b\nc\n"), (Some("--- 1"), "brigade: d\n \n")]
        {
            let log = Log::create(folder.path(), 0, separator).unwrap();
            copy_output(text.as_bytes(), &log, &Echo::None, |error| panic!("{error}"));
            let said = ["old", "Error: b", "d"];
            assert!(
                said.contains(&log.error_line(ExitReason::Code(1)).unwrap().as_str()),
                "{:?}",
                log.error_line(ExitReason::Code(1))
            );
        }
        let text = fs::read_to_string(folder.path().join("rank-0.log")).unwrap();
        assert_eq!(text, "a\nError: b\nc\n--- 1\nbrigade: d\n \n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_reported_once_and_the_stream_is_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("rank-0.log")).unwrap();
        let log = Log::create(folder.path(), 0, None).unwrap();
        let mut errors = vec![];
        copy_output(&b"a\nb\nc\n"[..], &log, &Echo::None, |error| errors.push(error.kind()));
        assert_eq!(errors, [io::ErrorKind::StorageFull]);
        assert_eq!(log.excerpt().1, ["a", "b", "c"]);
    }
}
