//! `brigade inspect timeline`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use brigade::{UsageError, exit};
use brigade_runs::timeline::{expected_events, find, idle, read};
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade train --profile-steps 10..12 --out runs/a   record steps 10 to 12
  brigade inspect timeline runs/a                     which ranks are idle in them, and why
  brigade inspect timeline runs/a --with-plan         add what the schedule would do

The first writes runs/a/profile/steps-10-12.json, the last steps-10-12-with-plan.json beside it; Perfetto opens both.";

#[derive(Debug, Args)]
pub struct TimelineArgs {
    /// The folder of a run with a timeline, or a timeline's file.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The steps of the timeline, as in 10..12 [default: the newest one].
    #[arg(long, value_name = "STEPS")]
    steps: Option<String>,
    /// Also write the timeline with the schedule beside it, as it would run with the measured times of the
    /// blocks.
    #[arg(long)]
    with_plan: bool,
}

pub fn run(args: &TimelineArgs) -> anyhow::Result<ExitCode> {
    let usage = |error: brigade_runs::Error| UsageError(error.into());
    let path = find(&args.run, args.steps.as_deref()).map_err(usage)?;
    let mut timeline = read(&path).map_err(usage)?;
    print(&idle(&timeline).to_string())?;
    if args.with_plan {
        timeline.trace_events.extend(expected_events(&timeline)?);
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let beside = path.with_file_name(format!("{name}-with-plan.json"));
        let text = serde_json::to_vec(&timeline)?;
        brigade_files::write_atomic(&beside, &text)
            .with_context(|| format!("cannot write {}", beside.display()))?;
        print(&format!("with the schedule beside it: {}\n", beside.display()))?;
    }
    Ok(ExitCode::from(exit::DONE))
}
