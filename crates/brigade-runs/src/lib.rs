//! What runs left in their folders, for people: a page with charts, a list of runs, and why a run is slow.
//!
//! [`Run::read`] reads a run's folder, [`page()`] makes of it one HTML file that needs no network, [`Server`] shows it while the run goes on,
//! and [`overviews`] lists the runs of a folder.
//!
//! - `run`: the files of a folder, and what became of the run.
//! - `charts`: columns of numbers from the records of steps, the heat map of ranks, and marks of what happened when.
//! - `page`: the HTML, from templates, with uPlot inside; `serve`: the same over HTTP.
//! - [`timeline`]: who stands idle in the timeline of some steps, and why.
//! - [`scaling`]: why a run is slow, and why more ranks do not make it as much faster.
//!
//! # Invariants
//! - Nothing here writes into a run's folder; [`page()`] gives a text.
//! - Files that are being written, were cut short or come from older versions are read as far as they go. What cannot be read is
//!   counted and said, never guessed.
//! - A page holds all that it shows: scripts, styles and numbers. Text of a run is escaped wherever it stands.
//! - Nothing here knows tensors, ranks or Burn; the training library does not build this crate.

mod charts;
mod error;
mod numbers;
mod page;
mod run;
pub mod scaling;
mod serve;
pub mod timeline;

pub use charts::{Chart, Charts, Heat, Mark, MarkKind, Measure, Series};
pub use error::{Error, Result};
pub use page::{PageData, RankTimeline, SpanKind, StepSpan, StepTimeline, page};
pub use run::{Difference, Follower, Overview, Run, RunState, Setting, overviews, settings_of};
pub use serve::{Access, Server};
