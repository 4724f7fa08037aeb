//! The one thing that a training loop speaks to.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use crate::{
    Compute, ConsoleMode, Error, Result, StepRecord, Summary,
    console::Console,
    events::{self, EventFile},
    jsonl::JsonLines,
    summary::Totals,
};

/// The name of the file with one JSON object a step.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// What a [`Reporter`] writes and shows.
#[derive(Debug, Clone, PartialEq)]
pub struct ReporterOptions {
    /// The number of the last step.
    pub total_steps: u64,
    /// Steps between two plain lines.
    pub log_every: u64,
    /// How progress is shown.
    pub console: ConsoleMode,
    /// What is known for the columns TFLOP/s and MFU.
    pub compute: Compute,
    /// Whether to write a TensorBoard event file.
    pub tensorboard: bool,
    /// Whether an earlier run's metrics and event files in the folder are replaced.
    pub overwrite: bool,
}

impl Default for ReporterOptions {
    fn default() -> Self {
        Self {
            total_steps: 0,
            log_every: 10,
            console: ConsoleMode::Auto,
            compute: Compute::default(),
            tensorboard: true,
            overwrite: false,
        }
    }
}

/// Writes and shows the metrics of a run. Only rank 0 has one.
pub struct Reporter {
    metrics: JsonLines,
    events: Option<EventFile>,
    console: Console,
    compute: Compute,
    totals: Totals,
    files: Vec<PathBuf>,
    steps: u64,
    started: Instant,
}

impl Reporter {
    /// Makes `<out_dir>/metrics.jsonl` and `<out_dir>/events.out.tfevents.*`, and the folder if it is
    /// missing.
    pub fn create(out_dir: &Path, options: ReporterOptions) -> Result<Self> {
        Self::create_on(out_dir, options, Box::new(io::stderr()))
    }

    /// The same, with plain lines going to `output`.
    pub fn create_on(
        out_dir: &Path,
        options: ReporterOptions,
        output: Box<dyn Write + Send>,
    ) -> Result<Self> {
        let ReporterOptions { total_steps, log_every, console, compute, tensorboard, overwrite } = options;
        fs::create_dir_all(out_dir).map_err(Error::file("create", out_dir))?;
        let earlier = event_files(out_dir)?;
        match earlier.first() {
            Some(path) if !overwrite => return Err(Error::Exists { path: path.clone() }),
            _ => {}
        }
        let metrics = JsonLines::create(out_dir.join(METRICS_FILE), overwrite)?;
        for path in earlier {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
        let events = tensorboard.then(|| EventFile::create(out_dir)).transpose()?;
        let files = [Some(metrics.path()), events.as_ref().map(EventFile::path)];
        let files = files.into_iter().flatten().map(Path::to_owned).collect();
        let console = Console::new(console, total_steps, log_every, compute, output);
        let (totals, started) = (Totals::default(), Instant::now());
        Ok(Self { metrics, events, console, compute, totals, files, steps: 0, started })
    }

    /// Writes and shows a step.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.metrics.write(record)?;
        if let Some(events) = &mut self.events {
            events.write(record, &self.compute)?;
        }
        self.console.step(record, self.steps == 0);
        self.totals.add(record);
        self.steps += 1;
        Ok(())
    }

    /// Shows a line of text, above the progress bar if there is one. Nothing if quiet.
    pub fn note(&mut self, text: &str) {
        self.console.note(text);
    }

    /// Adds a file that somebody else wrote to the summary's list.
    pub fn wrote(&mut self, path: impl Into<PathBuf>) {
        self.files.push(path.into());
    }

    /// Takes the progress bar away and adds everything up. The summary is the caller's to print.
    pub fn finish(mut self) -> Summary {
        self.console.finish();
        self.totals.finish(self.started.elapsed().as_secs_f64(), self.files)
    }
}

/// The event files in a folder, in order of their names.
fn event_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(Error::file("read", folder))?;
    let named = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(events::PREFIX);
    let mut files: Vec<PathBuf> =
        entries.iter().filter(|entry| named(entry)).map(fs::DirEntry::path).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Output that a test can read.
    #[derive(Clone, Default)]
    pub struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn options() -> ReporterOptions {
        ReporterOptions {
            total_steps: 7,
            log_every: 3,
            console: ConsoleMode::Plain,
            ..ReporterOptions::default()
        }
    }

    #[test]
    fn a_run_from_first_to_last_step() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("runs/a");
        let shown = Shared::default();
        let mut reporter = Reporter::create_on(&out, options(), Box::new(shown.clone())).unwrap();
        reporter.note("ranks from torchrun");
        for step in 1..=7 {
            let record = StepRecord { step, loss: 8.0 - step as f64, tokens: 10, ..StepRecord::default() };
            reporter.step(&record).unwrap();
            let written = fs::read_to_string(out.join(METRICS_FILE)).unwrap();
            assert_eq!(written.lines().count() as u64, step, "each step is on disk at once");
        }
        reporter.wrote(out.join("model.safetensors"));
        let summary = reporter.finish();
        assert_eq!((summary.steps, summary.tokens), (7, 70));
        assert_eq!((summary.first_loss, summary.last_loss), (Some(7.0), Some(1.0)));
        assert_eq!(summary.files.len(), 3);
        assert!(summary.files[..2].iter().all(|file| file.exists()));
        let text = shown.text();
        let steps: Vec<&str> = text.lines().skip(1).map(|line| &line[..8]).collect();
        assert!(text.starts_with("ranks from torchrun\n"));
        assert_eq!(steps, ["step 1/7", "step 3/7", "step 6/7", "step 7/7"]);
    }

    #[test]
    fn an_earlier_run_is_safe() {
        let folder = tempfile::tempdir().unwrap();
        let quiet = ReporterOptions { console: ConsoleMode::Quiet, ..options() };
        let mut first = Reporter::create(folder.path(), quiet.clone()).unwrap();
        first.step(&StepRecord::default()).unwrap();
        let before = fs::read(folder.path().join(METRICS_FILE)).unwrap();
        let message = Reporter::create(folder.path(), quiet.clone()).err().unwrap().to_string();
        assert!(message.contains("--overwrite"), "{message}");
        assert_eq!(fs::read(folder.path().join(METRICS_FILE)).unwrap(), before);
        let no_events = ReporterOptions { overwrite: true, tensorboard: false, ..quiet };
        let second = Reporter::create(folder.path(), no_events).unwrap();
        assert_eq!(second.finish().files, [folder.path().join(METRICS_FILE)]);
        assert_eq!(event_files(folder.path()).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(fs::read(folder.path().join(METRICS_FILE)).unwrap(), b"");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        let message = Reporter::create(&file.join("out"), options()).err().unwrap().to_string();
        assert!(message.contains("create") && message.contains("file/out"), "{message}");
    }
}
