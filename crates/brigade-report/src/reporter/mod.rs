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
    metrics_file::JsonLines,
    summary::Totals,
    tensorboard::{self, EventFile},
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
        let earlier = tensorboard::existing(out_dir)?;
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
            let file = events.insert(EventFile::create(out_dir, &tensorboard::existing(out_dir)?)?);
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
pub(crate) mod tests;
