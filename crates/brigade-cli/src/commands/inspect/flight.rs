//! `brigade inspect flight`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use brigade::comm::flight::{self, FlightRecord};
use brigade::{FLIGHT_FOLDER, UsageError, exit};
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade inspect flight runs/a               which rank missed which operation, in one line
  brigade inspect flight runs/a --verbose     adds the last operations of each rank";

/// Operations per rank in the table.
const LINES: usize = 12;

#[derive(Debug, Args)]
pub struct FlightArgs {
    /// The folder of a run that failed, or of its flight records.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Also show the last operations of each rank.
    #[arg(long, short)]
    verbose: bool,
}

pub fn run(args: &FlightArgs) -> anyhow::Result<ExitCode> {
    let records = records(&args.dir)?;
    let mut text = format!("{}\n", flight::diagnose(&records));
    if args.verbose {
        text.push_str(&flight::table(&records, LINES));
    }
    print(&text)?;
    Ok(ExitCode::from(exit::DONE))
}

fn records(dir: &Path) -> anyhow::Result<Vec<FlightRecord>> {
    let inside = dir.join(FLIGHT_FOLDER);
    let dir = if inside.is_dir() { inside } else { dir.to_owned() };
    if !dir.is_dir() {
        let given = dir.display();
        return Err(UsageError(anyhow!(
            "{given} is not a folder; give that of a run, or of its flight records"
        ))
        .into());
    }
    let entries =
        std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display())).map_err(UsageError)?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry?.path());
    }
    files.retain(|file| {
        let name = file.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        name.strip_prefix("rank-").is_some_and(|rest| rest.ends_with(".json"))
    });
    files.sort();
    if files.is_empty() {
        let nothing = anyhow!(
            "{} holds no flight records (rank-0.json, …); ranks write them when communication fails (a rank dies, \
            hangs or calls another operation), but a killed rank cannot",
            dir.display()
        );
        return Err(UsageError(nothing).into());
    }
    let (mut records, mut first) = (Vec::new(), None);
    for file in &files {
        match flight::read(file) {
            Ok(record) => records.push(record),
            Err(error) => {
                brigade::print_stderr(format_args!("skipped {error}"));
                first.get_or_insert(error);
            }
        }
    }
    match first.filter(|_| records.is_empty()) {
        Some(error) => Err(error).context("no flight record could be read"),
        None => Ok(records),
    }
}
