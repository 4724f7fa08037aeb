//! Metrics of a run, which rank 0 writes: `metrics.jsonl`, `history.jsonl`, TensorBoard event files, progress on the terminal, and
//! a summary.
//!
//! The training loop makes a [`StepRecord`] per step and passes it to a [`Reporter`], which does everything else.
//! [`ByteProgress`] shows the progress of a pass over data, and a [`MachineFinding`] says what a machine has or lacks.
//!
//! - `record`: what is known about a step; `machine`: memory, and what a device can do at best.
//! - `metrics_file`, `tensorboard`, `history`: the kinds of files.
//! - [`timeline`]: what each rank did when, for trace viewers.
//! - `console`: lines and progress bars; `totals` and `summary`: what is printed at the end.
//! - `prometheus`: the last step over HTTP, if requested.
//! - `reporter`: all of these for one run.
//!
//! # Invariants
//! - A step that was reported is in the files before [`Reporter::step`] returns; a file that cannot be
//!   written is an error that names it.
//! - `metrics.jsonl` is valid JSON whatever the numbers are: non-finite numbers are written as `null`.
//! - An earlier run's files are not touched unless [`ReporterOptions::overwrite`] is set. A run that is resumed
//!   ([`Reporter::resume`]) or rolled back ([`Reporter::rewind`]) loses the lines of the steps that will run again, and
//!   no others; at any instant `metrics.jsonl` is the file before or the file after.
//! - Progress only goes to standard error; a run continues when nobody reads its output (a closed pipe).
//! - Nothing here reads a tensor or communicates with another rank.

mod console;
mod error;
mod history;
mod log;
mod machine;
mod median;
mod metrics_file;
mod prometheus;
mod record;
mod reporter;
mod summary;
mod tensorboard;
pub mod timeline;
mod totals;

pub use console::{
    byte_progress::ByteProgress, counted::counted, duration::duration, line::line, mode::ConsoleMode,
};
pub use error::{Error, Result};
pub use history::{HISTORY_FILE, HistoryRecord, RunEvent, add_launch_to_history, add_to_history, now};
pub use indicatif::{HumanBytes, HumanCount};
pub use log::{
    LogFormat, json_line, log_format, log_output, message_of, print_log, set_log_format, set_log_rank,
};
pub use machine::{
    capacity::{AddressSpace, MemoryCapacity, memory_capacity, oom_kills},
    finding::MachineFinding,
    memory::peak_rss_bytes,
    peak_flops::{PeakDtype, peak_flops},
};
pub use median::median;
pub use prometheus::{MetricsServer, check_metrics_address, metrics_address};
pub use record::{
    CheckpointRecord, CollectiveRecord, DeviceMemory, MemoryRecord, OuterStepRecord, PLANNED_MEMORY_FILE,
    PlannedMemory, RankSeconds, RoundRecord, StepRecord, TARGET_COUNTS, compute::Compute,
};
pub use reporter::{METRICS_FILE, Reporter, ReporterOptions};
pub use summary::Summary;
