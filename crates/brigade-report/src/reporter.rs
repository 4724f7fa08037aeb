//! The one thing that a training loop speaks to.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use crate::{
    CheckpointRecord, Compute, ConsoleMode, Error, Result, StepRecord, Summary,
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
    /// What the ranks compute on, where that is known (`8 x NVIDIA H100 80GB HBM3`); the summary tells.
    pub devices: Option<String>,
    /// Whether to write a TensorBoard event file.
    pub tensorboard: bool,
    /// Whether an earlier run's metrics and event files in the folder are replaced. A run that is continued keeps them
    /// in any case.
    pub overwrite: bool,
    /// Whether a run goes on where a file cannot be written while it is under way (a full disk): it is said once, and tried
    /// again with each step. Otherwise that is an error.
    pub goes_on: bool,
    /// How often the run's processes were started again before these; the summary tells.
    pub restart: u32,
}

impl Default for ReporterOptions {
    fn default() -> Self {
        Self {
            total_steps: 0,
            log_every: 10,
            console: ConsoleMode::Auto,
            compute: Compute::default(),
            devices: None,
            tensorboard: true,
            overwrite: false,
            goes_on: false,
            restart: 0,
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
    goes_on: bool,
    /// A file could not be written, and that was said.
    is_told: bool,
    /// The step after which all that was written is to go and could not yet; nothing is written until then.
    undone: Option<u64>,
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
        fs::create_dir_all(out_dir).map_err(Error::file("create", out_dir))?;
        let earlier = events::existing(out_dir)?;
        match earlier.first() {
            Some(path) if !options.overwrite => return Err(Error::Exists { path: path.clone() }),
            _ => {}
        }
        let metrics = JsonLines::create(out_dir.join(METRICS_FILE), options.overwrite)?;
        for path in earlier {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
        let events = options.tensorboard.then(|| EventFile::create(out_dir, &[])).transpose()?;
        Ok(Self::begin(metrics, events, options, None, output))
    }

    /// Continues the run in a folder after its step `last_step`; makes the folder and the files that are missing.
    ///
    /// `metrics.jsonl` loses the lines of later steps, and a last line that was cut short; a line without a readable
    /// step stays or goes with the line before it. Event files stay, and a new one tells TensorBoard to drop its points
    /// from step `last_step + 1` on.
    pub fn resume(out_dir: &Path, options: ReporterOptions, last_step: u64) -> Result<Self> {
        Self::resume_on(out_dir, options, last_step, Box::new(io::stderr()))
    }

    /// The same, with plain lines going to `output`.
    pub fn resume_on(
        out_dir: &Path,
        options: ReporterOptions,
        last_step: u64,
        output: Box<dyn Write + Send>,
    ) -> Result<Self> {
        fs::create_dir_all(out_dir).map_err(Error::file("create", out_dir))?;
        let metrics = JsonLines::resume(out_dir.join(METRICS_FILE), last_step)?;
        let mut events = None;
        if options.tensorboard {
            let file = events.insert(EventFile::create(out_dir, &events::existing(out_dir)?)?);
            file.start_at(last_step.saturating_add(1))?;
        }
        Ok(Self::begin(metrics, events, options, Some(last_step), output))
    }

    fn begin(
        metrics: JsonLines,
        events: Option<EventFile>,
        options: ReporterOptions,
        resumed_at: Option<u64>,
        output: Box<dyn Write + Send>,
    ) -> Self {
        let ReporterOptions { total_steps, log_every, console, compute, devices, restart, goes_on, .. } =
            options;
        let files = [Some(metrics.path()), events.as_ref().map(EventFile::path)];
        let files = files.into_iter().flatten().map(Path::to_owned).collect();
        let done = resumed_at.unwrap_or(0);
        let console = Console::new(console, done, total_steps, log_every, output);
        let (totals, started) = (Totals::new(resumed_at, restart, devices), Instant::now());
        Self {
            metrics,
            events,
            console,
            compute,
            totals,
            files,
            steps: 0,
            started,
            goes_on,
            is_told: false,
            undone: None,
        }
    }

    /// Writes and shows a step, with its TFLOP/s and MFU where they are known.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        let record = self.compute.rate(record);
        let written = self.undo().and_then(|()| self.metrics.write(&record));
        self.settle(written)?;
        if self.undone.is_none() {
            let written = self.events.as_mut().map_or(Ok(()), |events| events.write(&record));
            self.settle(written)?;
        }
        self.console.step(&record, self.steps == 0);
        self.totals.add(&record);
        self.steps += 1;
        Ok(())
    }

    /// Writes a checkpoint that was whole only after the last step was reported: into the event file, and the summary.
    /// All others come with the step at which they were whole.
    pub fn checkpoint(&mut self, checkpoint: &CheckpointRecord) -> Result<()> {
        let written = self.events.as_mut().map_or(Ok(()), |events| events.write_checkpoint(checkpoint));
        self.settle(written)?;
        self.totals.add_checkpoint(checkpoint);
        Ok(())
    }

    /// Goes back to the end of a step: what was written of later steps is removed from `metrics.jsonl`, and TensorBoard
    /// told to drop it. The time spent on them still counts in the summary.
    pub fn rewind(&mut self, step: u64) -> Result<()> {
        self.undone = Some(self.undone.map_or(step, |earlier| earlier.min(step)));
        let undone = self.undo();
        self.settle(undone)?;
        self.console.rewind(step);
        self.totals.rewind(step);
        Ok(())
    }

    /// Removes the steps that are to go, if there are any.
    fn undo(&mut self) -> Result<()> {
        if let Some(step) = self.undone {
            self.metrics.rewind(step)?;
            self.events.as_mut().map_or(Ok(()), |events| events.start_at(step.saturating_add(1)))?;
            self.undone = None;
        }
        Ok(())
    }

    /// Lets the run go on after a failure, if it is to.
    fn settle(&mut self, written: Result<()>) -> Result<()> {
        match written {
            Err(error) if self.goes_on => {
                if !self.is_told {
                    self.console
                        .note(&format!("{error}; the run goes on, and what it writes there has gaps"));
                }
                self.is_told = true;
                Ok(())
            }
            written => written,
        }
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

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::DeviceMemory;

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
    fn rates_and_devices_are_in_the_files_the_lines_and_the_summary() {
        let folder = tempfile::tempdir().unwrap();
        let shown = Shared::default();
        let options = ReporterOptions {
            compute: Compute { flops_per_token: Some(8e9), ranks: 8, peak_flops: Some(1e15) },
            devices: Some("8 x NVIDIA H100 80GB HBM3".into()),
            ..options()
        };
        let mut reporter = Reporter::create_on(folder.path(), options, Box::new(shown.clone())).unwrap();
        let memory =
            DeviceMemory { in_use: 1, reserved: 1 << 30, reserved_peak: 2 << 30, total: Some(8 << 30) };
        let record = StepRecord {
            step: 1,
            tokens_per_second: 4e5,
            device_memory: Some(memory),
            ..StepRecord::default()
        };
        reporter.step(&record).unwrap();
        let written = fs::read_to_string(folder.path().join(METRICS_FILE)).unwrap();
        let written: StepRecord = serde_json::from_str(&written).unwrap();
        assert_eq!((written.tflops, written.mfu_percent), (Some(400.0), Some(40.0)));
        assert_eq!(written.device_memory, Some(memory));
        assert!(
            shown.text().contains("TFLOP/s 400.000  MFU 40.0%  memory 2.00GiB(25.0%)"),
            "{}",
            shown.text()
        );
        let summary = reporter.finish();
        assert_eq!(summary.devices.as_deref(), Some("8 x NVIDIA H100 80GB HBM3"));
        assert_eq!((summary.median_tflops, summary.median_mfu_percent), (Some(400.0), Some(40.0)));
        assert_eq!(summary.device_memory, Some(memory));
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
        assert_eq!(events::existing(folder.path()).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(fs::read(folder.path().join(METRICS_FILE)).unwrap(), b"");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_ends_the_run_or_leaves_gaps() {
        use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
        use rustix::thread::{UnshareFlags, unshare_unsafe};

        let folder = tempfile::tempdir().unwrap();
        let small_disk = || {
            // SAFETY: only mounts are the thread's own from here on; files stay shared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            mount("brigade-test", folder.path(), "tmpfs", MountFlags::empty(), c"size=64k")
        };
        let test = || {
            if let Err(error) = small_disk() {
                println!("skipped: no file system can be mounted here ({error})");
                return;
            }
            for goes_on in [false, true] {
                let shown = Shared::default();
                let options = ReporterOptions { goes_on, overwrite: true, log_every: 100, ..options() };
                let mut reporter =
                    Reporter::create_on(folder.path(), options, Box::new(shown.clone())).unwrap();
                let filler = folder.path().join("filler");
                let mut step = 0;
                let mut report = |reporter: &mut Reporter| {
                    step += 1;
                    reporter.step(&StepRecord { step, ..StepRecord::default() })
                };
                report(&mut reporter).unwrap();
                fs::write(&filler, vec![0; 64 << 10]).unwrap_err();
                let failed = (0..40).find_map(|_| report(&mut reporter).err());
                assert_eq!(failed.is_none(), goes_on);
                if let Some(error) = failed {
                    assert!(error.to_string().contains("No space left"), "{error}");
                }
                fs::remove_file(&filler).unwrap();
                report(&mut reporter).unwrap();
                assert_eq!(shown.text().matches("No space left").count(), usize::from(goes_on), "said once");
                let steps = steps_in(folder.path());
                assert_eq!(steps.last(), Some(&step), "whole lines on both sides of the gap");
                assert!((steps.len() as u64) < step, "there is a gap");
                if goes_on {
                    // Steps that are done again leave a gap, too, and no line twice.
                    fs::write(&filler, vec![0; 64 << 10]).unwrap_err();
                    reporter.rewind(2).unwrap();
                    let redone = |step| StepRecord { step, ..StepRecord::default() };
                    (3..6).for_each(|step| reporter.step(&redone(step)).unwrap());
                    fs::remove_file(&filler).unwrap();
                    (6..8).for_each(|step| reporter.step(&redone(step)).unwrap());
                    let steps = steps_in(folder.path());
                    assert!(steps.is_sorted_by(|a, b| a < b) && steps.ends_with(&[6, 7]), "{steps:?}");
                }
            }
        };
        // The mount ends with the thread.
        std::thread::scope(|scope| scope.spawn(test).join()).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        let message = Reporter::create(&file.join("out"), options()).err().unwrap().to_string();
        assert!(message.contains("create") && message.contains("file/out"), "{message}");
    }

    fn steps_in(out: &Path) -> Vec<u64> {
        let text = fs::read_to_string(out.join(METRICS_FILE)).unwrap();
        let step = |line| serde_json::from_str::<StepRecord>(line).unwrap().step;
        text.lines().map(step).collect()
    }

    #[test]
    fn a_run_goes_on_where_it_was_saved() {
        let folder = tempfile::tempdir().unwrap();
        let report = |reporter: &mut Reporter, steps: std::ops::RangeInclusive<u64>| {
            for step in steps {
                reporter.step(&StepRecord { step, loss: step as f64, ..StepRecord::default() }).unwrap();
            }
        };
        let mut killed = Reporter::create_on(folder.path(), options(), Box::new(io::sink())).unwrap();
        report(&mut killed, 1..=5);

        let shown = Shared::default();
        let again = ReporterOptions { restart: 1, ..options() };
        let mut reporter = Reporter::resume_on(folder.path(), again, 3, Box::new(shown.clone())).unwrap();
        report(&mut killed, 6..=6);
        assert_eq!(steps_in(folder.path()), [1, 2, 3], "a process that lives on cannot write any more");
        report(&mut reporter, 4..=6);
        reporter.rewind(4).unwrap();
        assert_eq!(steps_in(folder.path()), [1, 2, 3, 4]);
        report(&mut reporter, 5..=7);
        assert_eq!(steps_in(folder.path()), [1, 2, 3, 4, 5, 6, 7]);
        reporter
            .checkpoint(&CheckpointRecord { step: 7, bytes: 1 << 20, ..CheckpointRecord::default() })
            .unwrap();

        let files = events::existing(folder.path()).unwrap();
        assert_eq!(files.len(), 2, "the first event file stays");
        let summary = reporter.finish();
        assert_eq!(summary.files, [folder.path().join(METRICS_FILE), files[1].clone()]);
        assert_eq!((summary.steps, summary.undone_steps, summary.restarts), (6, 2, 1));
        assert_eq!((summary.resumed_at, summary.checkpoints), (Some(3), 1));
        assert_eq!((summary.first_loss, summary.last_loss), (Some(4.0), Some(7.0)));
        let text = shown.text();
        let lines: Vec<&str> = text.lines().map(|line| &line[..8]).collect();
        assert_eq!(lines, ["step 4/7", "step 6/7", "step 6/7", "step 7/7"]);
    }

    #[test]
    fn a_folder_without_metrics_is_filled() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("runs/a");
        let quiet = ReporterOptions { console: ConsoleMode::Quiet, tensorboard: false, ..options() };
        let mut reporter = Reporter::resume(&out, quiet, u64::MAX).unwrap();
        reporter.step(&StepRecord { step: 4, ..StepRecord::default() }).unwrap();
        reporter.rewind(u64::MAX).unwrap();
        assert_eq!(steps_in(&out), [4]);
        assert!(events::existing(&out).unwrap().is_empty());
    }
}
