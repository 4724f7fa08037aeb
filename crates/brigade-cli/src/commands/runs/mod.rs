//! `brigade runs`, and what else looks at runs.

mod place;
pub(crate) mod report;
pub(crate) mod scaling;
pub(crate) mod status;
pub(crate) mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use brigade::report::HumanCount;
use brigade::{UsageError, exit};
use brigade_runs::{Overview, Run, overviews};
use clap::Args;
use comfy_table::Row;

use crate::data::columns::columns;
use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade runs                  the runs in runs/, with their status and latest figures
  brigade runs experiments/     those in another folder";

#[derive(Debug, Args)]
pub struct RunsArgs {
    /// Folder of runs.
    #[arg(value_name = "FOLDER", default_value = "runs")]
    folder: PathBuf,
}

pub fn run(args: &RunsArgs) -> anyhow::Result<ExitCode> {
    let found = overviews(&args.folder).map_err(|error| UsageError(error.into()))?;
    if found.is_empty() {
        print(&format!("{} has no runs in it\n", args.folder.display()))?;
        return Ok(ExitCode::from(exit::DONE));
    }
    let head =
        ["run", "state", "step", "loss", "validation", "per second", "ranks", "why"].map(str::to_owned);
    print(&columns([Row::from(head)].into_iter().chain(found.iter().flatten().map(row))))?;
    for overview in &found {
        match overview {
            Ok(overview) => say_unreadable(&overview.run),
            Err(error) => brigade::print_stderr(format_args!("{error}; this run is left out")),
        }
    }
    Ok(ExitCode::from(exit::DONE))
}

/// Says on stderr that lines of a run's metrics are left out, where they are.
fn say_unreadable(run: &Run) {
    if let Some(note) = run.unreadable_note() {
        brigade::print_stderr(format_args!("{}: {note}", run.dir.display()));
    }
}

fn row(overview: &Overview) -> Row {
    let run = &overview.run;
    let last = overview.last();
    let unknown = || "-".to_owned();
    let step = last.map_or(0, |last| last.step);
    let steps = run.total_steps().map_or_else(|| step.to_string(), |total| format!("{step}/{total}"));
    let state = run.state.to_string();
    let why =
        state.strip_prefix(run.state.word()).unwrap_or_default().trim_start_matches([':', ' ']).to_owned();
    Row::from([
        run.name.clone(),
        run.state.word().to_owned(),
        steps,
        last.map_or_else(unknown, |last| format!("{:.4}", last.loss)),
        last.and_then(|last| last.validation_loss).map_or_else(unknown, |loss| format!("{loss:.4}")),
        last.map_or_else(unknown, |last| {
            format!("{} {}", HumanCount(last.tokens_per_second.round() as u64), run.unit())
        }),
        run.ranks().map_or_else(unknown, |ranks| ranks.to_string()),
        why,
    ])
}
