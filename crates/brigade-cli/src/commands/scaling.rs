//! `brigade scaling`

use std::path::PathBuf;
use std::process::ExitCode;

use brigade::{UsageError, exit};
use brigade_runs::Run;
use brigade_runs::scaling::scaling;
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade scaling runs/2 runs/4 runs/8     runs of one model on 2, 4 and 8 ranks: speed-up, the gap to linear, what to change first";

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct ScalingArgs {
    /// Folders of runs of one model, on at least two different numbers of ranks.
    #[arg(value_name = "RUN", num_args = 1.., required = true)]
    runs: Vec<PathBuf>,
}

pub fn run(args: &ScalingArgs) -> anyhow::Result<ExitCode> {
    let usage = |error: brigade_runs::Error| UsageError(error.into());
    let runs = args.runs.iter().map(|dir| Run::read(dir)).collect::<Result<Vec<Run>, _>>().map_err(usage)?;
    let found = scaling(&runs).map_err(usage)?;
    print(&found.to_string())?;
    Ok(ExitCode::from(exit::DONE))
}
