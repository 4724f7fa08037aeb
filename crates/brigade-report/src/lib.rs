//! Metrics of a run, kept by rank 0: `metrics.jsonl`, TensorBoard event files, progress on the terminal, a
//! summary.
//!
//! The training loop makes a [`StepRecord`] a step and hands it to a [`Reporter`], which does everything
//! else. [`ByteProgress`] shows how far a pass over data has come, [`Finding`] says what a machine has or lacks.
//!
//! # Invariants
//! - A step that was reported is in the files before [`Reporter::step`] returns; a file that cannot be
//!   written is an error that names it.
//! - `metrics.jsonl` is valid JSON whatever the numbers are: what is not finite is written as `null`.
//! - An earlier run's files are not touched unless [`ReporterOptions::overwrite`] is set. A run that is continued
//!   ([`Reporter::resume`]) or goes back ([`Reporter::rewind`]) loses the lines of the steps that it does again, and
//!   no others; at any instant `metrics.jsonl` is the file before or the file after.
//! - Progress goes to standard error alone; output that is gone (a closed pipe) does not end a run.
//! - Nothing here reads a tensor or speaks to another rank.

mod console;
mod error;
mod machine;
mod metrics_file;
mod record;
mod reporter;
mod summary;
mod tensorboard;

pub use console::{ConsoleMode, byte_progress::ByteProgress, line, size};
pub use error::{Error, Result};
pub use machine::{
    finding::Finding,
    memory::peak_rss_bytes,
    peak_flops::{NumberType, peak_flops},
};
pub use record::{CheckpointRecord, Collective, DeviceMemory, MemoryRecord, StepRecord, compute::Compute};
pub use reporter::{METRICS_FILE, Reporter, ReporterOptions};
pub use summary::Summary;
