//! Reports on runs from their folders: a page with charts, a list of runs, and why a run is slow.
//!
//! [`Run::read`] reads a run's folder, [`page()`] turns it into one HTML file that needs no network, [`Server`] serves it while the run
//! continues, and [`overviews`] lists the runs of a folder.
//!
//! - `run`: the files of a folder, and the run's status.
//! - `charts`: columns of numbers from the records of steps, the heat map of ranks, and marks of what happened when.
//! - `page`: the HTML, from templates, with uPlot inside; `serve`: the same over HTTP.
//! - [`timeline`]: which ranks are idle in the timeline of some steps, and why.
//! - [`scaling`]: why a run is slow, and why more ranks do not make it proportionally faster.
//!
//! # Invariants
//! - Nothing here writes into a run's folder; [`page()`] returns text.
//! - Files that are being written, were truncated or come from older versions are read as far as possible. Unreadable parts are
//!   counted and reported, never guessed.
//! - A page contains everything that it shows: scripts, styles and numbers. Text from a run is always escaped.
//! - Nothing here knows tensors, ranks or Burn; the training library does not build this crate.

mod charts;
mod error;
mod page;
mod run;
pub mod scaling;
mod serve;
pub mod timeline;

pub use charts::{Chart, Charts, Heat, Mark, MarkKind, Measure, Series};
pub use error::{Error, Result};
pub use page::{PAGE_MARKER, PageData, RankTimeline, SpanKind, StepSpan, StepTimeline, page};
pub use run::{
    Difference, Follower, Overview, Run, RunState, Setting, overviews, seconds_per_step, settings_of,
};
pub use serve::{Access, Server};
