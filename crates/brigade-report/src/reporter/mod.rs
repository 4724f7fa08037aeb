//! The interface of this crate for a training loop.

mod warnings;

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    console::{mode::ConsoleMode, steps::Console},
    error::{Error, Result},
    history::{History, RunEvent},
    log::log_output,
    metrics_file::JsonLines,
    prometheus::MetricsServer,
    record::{CheckpointRecord, StepRecord, compute::Compute},
    summary::Summary,
    tensorboard::event_file::{EventFile, existing},
    totals::Totals,
};
use warnings::Warnings;

/// What targets are called unless the data say otherwise.
const TOKENS: &str = "tokens";

/// The name of the file with one JSON object a step.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// What a [`Reporter`] writes and shows.
#[derive(Debug, Clone, PartialEq)]
pub struct ReporterOptions {
    /// The number of the last step.
    pub total_steps: u64,
    /// What targets are called on the terminal and in the summary, in the plural: `tokens`, `samples`, `images`.
    pub unit: String,
    /// Steps between two plain lines.
    pub log_every: u64,
    /// How progress is shown.
    pub console: ConsoleMode,
    /// What TFLOP/s and MFU are computed from.
    pub compute: Compute,
    /// What the ranks compute on, where that is known (`8 x NVIDIA H100 80GB HBM3`); for the summary.
    pub devices: Option<String>,
    /// How long a message takes between the ranks, where they are on several hosts; for the history.
    pub network_delay: Option<Duration>,
    /// Whether to write a TensorBoard event file.
    pub tensorboard: bool,
    /// Whether an earlier run's metrics and event files in the folder are replaced. A run that is resumed keeps them
    /// in any case.
    pub overwrite: bool,
    /// Whether a run continues if a file cannot be written later on (a full disk): a note says so once, and each step tries
    /// again. Otherwise that is an error.
    pub goes_on: bool,
    /// How often the ranks were restarted before; for the summary.
    pub restart: u32,
    /// The axes of the mesh with their sizes, the outermost first; for the history.
    pub mesh: Vec<(String, usize)>,
    /// How many ranks are parameter servers: the last ones, which do other work than the rest; for the history.
    pub servers: usize,
    /// Where the last step is shown to Prometheus, if anywhere.
    pub metrics_addr: Option<SocketAddr>,
    /// The share of a step that a pipeline's schedule leaves idle, by its formula; more than that causes a warning. None without a
    /// pipeline.
    pub expected_bubble: Option<f64>,
}

impl Default for ReporterOptions {
    fn default() -> Self {
        Self {
            total_steps: 0,
            unit: TOKENS.into(),
            log_every: 10,
            console: ConsoleMode::Auto,
            compute: Compute::default(),
            devices: None,
            network_delay: None,
            tensorboard: true,
            overwrite: false,
            goes_on: false,
            restart: 0,
            mesh: Vec::new(),
            servers: 0,
            metrics_addr: None,
            expected_bubble: None,
        }
    }
}

/// Writes and shows the metrics of a run. Only rank 0 has one.
pub struct Reporter {
    metrics: JsonLines,
    history: History,
    events: Option<EventFile>,
    server: Option<MetricsServer>,
    console: Console,
    compute: Compute,
    /// What targets are called, where they are not tokens.
    unit: Option<String>,
    totals: Totals,
    warnings: Warnings,
    files: Vec<PathBuf>,
    steps: u64,
    total_steps: u64,
    restart: u32,
    started: Instant,
    goes_on: bool,
    /// A file could not be written, and a note said so.
    has_warned: bool,
    /// The step after which everything written is still to be removed, because that failed; until it succeeds nothing is written.
    pending_rewind: Option<u64>,
}

/// Listens before anything is written: an address that is taken costs an earlier run none of its files.
fn server(options: &ReporterOptions) -> Result<Option<MetricsServer>> {
    options.metrics_addr.map(MetricsServer::start).transpose()
}

impl Reporter {
    /// Makes `metrics.jsonl`, `history.jsonl` and `events.out.tfevents.*` in `out_dir`, and the folder if it is missing. A run that was
    /// restarted continues with its history.
    pub fn create(out_dir: &Path, options: ReporterOptions) -> Result<Self> {
        Self::create_on(out_dir, options, log_output())
    }

    /// The same, with plain lines going to `output`.
    pub fn create_on(
        out_dir: &Path,
        options: ReporterOptions,
        output: Box<dyn Write + Send>,
    ) -> Result<Self> {
        fs::create_dir_all(out_dir).map_err(Error::file("create", out_dir))?;
        let earlier = existing(out_dir)?;
        match earlier.first() {
            Some(path) if !options.overwrite => return Err(Error::Exists { path: path.clone() }),
            _ => {}
        }
        let server = server(&options)?;
        let metrics = JsonLines::create(out_dir.join(METRICS_FILE), options.overwrite)?;
        for path in earlier {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
        let events = options.tensorboard.then(|| EventFile::create(out_dir, &[])).transpose()?;
        let history = History::begin(out_dir, &options, None)?;
        Self::begin((metrics, history, events, server), options, None, output)
    }

    /// Resumes the run in a folder after its step `last_step`; makes the folder and the files that are missing.
    ///
    /// `metrics.jsonl` loses the lines of later steps, and a last line that was cut short; a line without a readable
    /// step is kept or removed with the line before it. Event files stay, and a new one tells TensorBoard to drop its points
    /// from step `last_step + 1` on.
    pub fn resume(out_dir: &Path, options: ReporterOptions, last_step: u64) -> Result<Self> {
        Self::resume_on(out_dir, options, last_step, log_output())
    }

    /// The same, with plain lines going to `output`.
    pub fn resume_on(
        out_dir: &Path,
        options: ReporterOptions,
        last_step: u64,
        output: Box<dyn Write + Send>,
    ) -> Result<Self> {
        fs::create_dir_all(out_dir).map_err(Error::file("create", out_dir))?;
        let server = server(&options)?;
        let metrics = JsonLines::resume(out_dir.join(METRICS_FILE), last_step)?;
        let mut events = None;
        if options.tensorboard {
            let file = events.insert(EventFile::create(out_dir, &existing(out_dir)?)?);
            file.start_at(last_step.saturating_add(1))?;
        }
        let history = History::begin(out_dir, &options, Some(last_step))?;
        Self::begin((metrics, history, events, server), options, Some(last_step), output)
    }

    fn begin(
        (metrics, history, events, server): (JsonLines, History, Option<EventFile>, Option<MetricsServer>),
        options: ReporterOptions,
        resumed_at: Option<u64>,
        output: Box<dyn Write + Send>,
    ) -> Result<Self> {
        let ReporterOptions {
            total_steps,
            unit,
            log_every,
            console,
            compute,
            devices,
            restart,
            goes_on,
            mesh,
            servers,
            expected_bubble,
            ..
        } = options;
        let files = [Some(metrics.path()), events.as_ref().map(EventFile::path)];
        let files = files.into_iter().flatten().map(Path::to_owned).collect();
        let done = resumed_at.unwrap_or(0);
        let dir = metrics.path().parent().unwrap_or(Path::new("")).to_owned();
        let warnings = Warnings::new(dir, mesh, servers, expected_bubble);
        let console = Console::new(console, done, total_steps, unit.clone(), log_every, output);
        let named = (unit != TOKENS).then(|| unit.clone());
        let (totals, started) = (Totals::new(resumed_at, restart, devices, unit), Instant::now());
        Ok(Self {
            metrics,
            history,
            events,
            server,
            console,
            compute,
            unit: named,
            totals,
            warnings,
            files,
            steps: 0,
            total_steps,
            restart,
            started,
            goes_on,
            has_warned: false,
            pending_rewind: None,
        })
    }

    fn completed(&self, record: &StepRecord) -> StepRecord {
        StepRecord { unit: self.unit.clone(), ..self.compute.rate(record) }
    }

    /// Writes and shows a step, with its TFLOP/s and MFU where they are known.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        let record = self.completed(record);
        let written = self.try_rewind().and_then(|()| self.metrics.write(&record));
        self.tolerate(written)?;
        if self.pending_rewind.is_none() {
            let written = self.events.as_mut().map_or(Ok(()), |events| events.write(&record));
            self.tolerate(written)?;
        }
        self.console.step(&record, self.steps == 0);
        if let Some(server) = &mut self.server {
            server.show(&record, self.total_steps, self.restart);
        }
        self.warnings.after(&record).iter().for_each(|text| self.console.note(text));
        self.totals.add(&record);
        self.steps += 1;
        Ok(())
    }

    /// Reports the last step again, with a validation that was made after it had been reported.
    pub fn validation(&mut self, record: &StepRecord) -> Result<()> {
        let record = self.completed(record);
        let written = self.try_rewind().and_then(|()| self.metrics.replace_last(&record));
        self.tolerate(written)?;
        let written = self.events.as_mut().map_or(Ok(()), |events| events.write_validation(&record));
        self.tolerate(written)?;
        self.console.step(&record, false);
        self.totals.add_validation(&record);
        Ok(())
    }

    /// Reports a checkpoint that became complete only after the last step was reported: for the event file and the summary.
    /// All others come with the step during which they became complete.
    pub fn checkpoint(&mut self, checkpoint: &CheckpointRecord) -> Result<()> {
        let written = self.events.as_mut().map_or(Ok(()), |events| events.write_checkpoint(checkpoint));
        self.tolerate(written)?;
        self.totals.add_checkpoint(checkpoint);
        Ok(())
    }

    /// Rolls back to the end of a step: later steps are removed from `metrics.jsonl`, and TensorBoard is told to drop them. The
    /// time spent on them still counts in the summary.
    pub fn rewind(&mut self, step: u64) -> Result<()> {
        self.pending_rewind = Some(self.pending_rewind.map_or(step, |earlier| earlier.min(step)));
        let rewound = self.try_rewind().and_then(|()| self.history.add(RunEvent::RolledBack { step }));
        self.tolerate(rewound)?;
        self.console.rewind(step);
        self.totals.rewind(step);
        Ok(())
    }

    /// Removes the steps of a rewind that is still pending.
    fn try_rewind(&mut self) -> Result<()> {
        if let Some(step) = self.pending_rewind {
            self.metrics.rewind(step)?;
            self.events.as_mut().map_or(Ok(()), |events| events.start_at(step.saturating_add(1)))?;
            self.pending_rewind = None;
        }
        Ok(())
    }

    /// Lets the run continue after a failure to write, if it may.
    fn tolerate(&mut self, written: Result<()>) -> Result<()> {
        match written {
            Err(error) if self.goes_on => {
                if !self.has_warned {
                    self.console.note(&format!("{error}; the run continues, but its metrics will have gaps"));
                }
                self.has_warned = true;
                Ok(())
            }
            written => written,
        }
    }

    /// Adds an event to the run's history.
    pub fn event(&mut self, event: RunEvent) -> Result<()> {
        let written = self.history.add(event);
        self.tolerate(written)
    }

    /// Shows a line of text, above the progress bar if there is one. Shows nothing if quiet.
    pub fn note(&mut self, text: &str) {
        self.console.note(text);
    }

    /// Adds a file that the caller wrote to the summary's list.
    pub fn add_file(&mut self, path: impl Into<PathBuf>) {
        self.files.push(path.into());
    }

    /// Removes the progress bar and adds everything up. The caller prints the summary.
    pub fn finish(mut self) -> Summary {
        self.console.finish();
        self.totals.finish(self.started.elapsed().as_secs_f64(), self.files)
    }
}

#[cfg(test)]
pub(crate) mod tests;
