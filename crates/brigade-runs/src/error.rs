//! Why a run cannot be shown.

use std::{io, path::PathBuf};

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such folder.
    #[error("{path} is not a folder; give that of a run, such as runs/gpt-tiny-1, or of several")]
    NoFolder {
        /// What was given.
        path: PathBuf,
    },
    /// The folder is not that of a run, or its run has not finished a step.
    #[error("{path} has no metrics.jsonl: it is not the folder of a run, or its ranks were never ready")]
    NoMetrics {
        /// The folder.
        path: PathBuf,
    },
    /// No line of the metrics can be read.
    #[error("{path} has no line that can be read{}", if *lines == 0 { "; its run has not finished a step" } else { "" })]
    NoSteps {
        /// The file.
        path: PathBuf,
        /// How many lines there are.
        lines: usize,
    },
    /// The runs have nothing to compare.
    #[error("{other} cannot be compared with {run}: {why}")]
    NotComparable {
        /// The run.
        run: PathBuf,
        /// The one that it was to be compared with.
        other: PathBuf,
        /// What differs.
        why: String,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Scaling needs runs on different numbers of ranks.
    #[error("scaling needs runs on at least two different numbers of ranks; {}", given(*ranks))]
    OneSize {
        /// The only number that was given; 0 if there was no run.
        ranks: usize,
    },
    /// A run has made no step on its ranks.
    #[error(
        "{run} cannot be compared with other runs: it has made no steps in its last mesh yet, and only those are compared"
    )]
    NoStepsYet {
        /// The run.
        run: PathBuf,
    },
    /// The run has no timeline of these steps.
    #[error(
        "{path} has no timeline{}: `brigade train --profile-steps 10..12` writes one",
        asked(steps, there)
    )]
    NoTimeline {
        /// The run's folder.
        path: PathBuf,
        /// The steps that were asked for; empty for any.
        steps: String,
        /// The timelines that are there.
        there: Vec<String>,
    },
    /// A timeline cannot be read.
    #[error("{path} is not a timeline written by Brigade: {why}")]
    NotATimeline {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is nothing to watch.
    #[error("{path} has no runs in it, and is not the folder of one")]
    NoRuns {
        /// The folder.
        path: PathBuf,
    },
    /// The server cannot continue.
    #[error("the server failed: {0}")]
    Server(io::Error),
    /// A template is wrong, which is a mistake in this crate.
    #[error("the page cannot be made: {0}")]
    Template(#[from] minijinja::Error),
    /// Numbers cannot be written as JSON, which is a mistake in this crate.
    #[error("the page's numbers cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

fn asked(steps: &str, there: &[String]) -> String {
    let of = if steps.is_empty() { String::new() } else { format!(" of steps {steps}") };
    let others = if there.is_empty() { String::new() } else { format!(" (there is {})", there.join(", ")) };
    of + &others
}

fn given(ranks: usize) -> String {
    match ranks {
        0 => "no run was given".to_owned(),
        ranks => format!("all that were given ran on {ranks}"),
    }
}

impl Error {
    /// For `map_err`: the path cannot be read.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
