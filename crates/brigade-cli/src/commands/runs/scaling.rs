//! `brigade scaling`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow, bail};
use brigade::command_line::has_option;
use brigade::report::{METRICS_FILE, counted};
use brigade::{UsageError, exit};
use brigade_runs::Run;
use brigade_runs::scaling::scaling;
use clap::Args;

use super::place::RunPlace;
use super::say_unreadable;
use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade scaling runs/2 runs/4 runs/8                               runs on 2, 4 and 8 ranks
  brigade scaling --measure 1,2 -- train --data corpus/ --steps 30   trains on 1 and 2 ranks

It compares runs of one model: the speed-up, the gap to linear, and what to change first. --measure trains on this machine.";

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct ScalingArgs {
    /// Folders or URLs of runs of one model, on at least two different numbers of ranks.
    #[arg(value_name = "RUN", num_args = 1.., required_unless_present = "measure", conflicts_with = "measure")]
    runs: Vec<PathBuf>,
    /// Train on each of these numbers of ranks on this machine, one run after the other, and compare the
    /// runs.
    #[arg(long, value_name = "RANKS", value_delimiter = ',', value_parser = ranks, requires = "command")]
    measure: Vec<usize>,
    /// With --measure: the folder for these runs, each in a subfolder named by its number of ranks.
    #[arg(long, value_name = "DIR", default_value = "runs/scaling", requires = "measure")]
    out: PathBuf,
    /// With --measure: train and its flags, except --nproc-per-node and --out.
    #[arg(last = true, value_name = "train …", requires = "measure")]
    command: Vec<OsString>,
}

fn ranks(text: &str) -> Result<usize, String> {
    let wrong = "it must be numbers of ranks, at least 1, separated by commas, as in 1,2,4";
    text.parse().ok().filter(|ranks| *ranks > 0).ok_or_else(|| wrong.to_owned())
}

pub fn run(args: &ScalingArgs) -> anyhow::Result<ExitCode> {
    if args.measure.is_empty() && !args.command.is_empty() {
        return Err(UsageError(anyhow!(
            "what follows `--` is trained with --measure alone: brigade scaling --measure 1,2 -- train --data corpus/ --steps 30"
        ))
        .into());
    }
    let usage = |error: brigade_runs::Error| UsageError(error.into());
    let folders = if args.measure.is_empty() { args.runs.clone() } else { measure(args)? };
    let places = folders.iter().map(|dir| RunPlace::of(dir)).collect::<anyhow::Result<Vec<_>>>();
    let places = places.map_err(UsageError)?;
    let runs = places.iter().map(|place| Run::read(place.folder()));
    let runs = runs.collect::<Result<Vec<Run>, _>>().map_err(usage)?;
    let found = scaling(&runs).map_err(usage)?;
    print(&found.to_string())?;
    runs.iter().for_each(say_unreadable);
    Ok(ExitCode::from(exit::DONE))
}

/// Trains on each number of ranks; returns the folders of the runs.
fn measure(args: &ScalingArgs) -> anyhow::Result<Vec<PathBuf>> {
    let mut sizes = args.measure.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let folders: Vec<PathBuf> = sizes.iter().map(|ranks| args.out.join(ranks.to_string())).collect();
    check(args, &sizes, &folders).map_err(UsageError)?;
    for (ranks, folder) in sizes.iter().zip(&folders) {
        let s = if *ranks == 1 { "" } else { "s" };
        brigade::print_stderr(format_args!("measuring {ranks} rank{s} into {}", folder.display()));
        train(&args.command, *ranks, folder)?;
    }
    Ok(folders)
}

fn check(args: &ScalingArgs, sizes: &[usize], folders: &[PathBuf]) -> anyhow::Result<()> {
    if sizes.len() < 2 {
        let given: Vec<String> = args.measure.iter().map(ToString::to_string).collect();
        bail!(
            "--measure {} is not possible: a comparison needs at least two numbers of ranks, as in 1,2",
            given.join(",")
        );
    }
    if args.command.first().is_none_or(|word| word != "train") {
        bail!("--measure runs `train`: brigade scaling --measure 1,2 -- train --data corpus/ --steps 30");
    }
    for option in ["--nproc-per-node", "--out", "--resume"] {
        if has_option(&args.command, option) {
            bail!(
                "{option} cannot be given with --measure, which sets the number of ranks and the folder of each run"
            );
        }
    }
    if let Some(there) = folders.iter().find(|folder| folder.join(METRICS_FILE).exists()) {
        bail!("--out {}: {} holds an earlier run; give another folder", args.out.display(), there.display());
    }
    Ok(())
}

fn train(command: &[OsString], ranks: usize, folder: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program);
    child.args(command).args(["--nproc-per-node", &ranks.to_string()]).arg("--out").arg(folder);
    // What it prints at its end would stand before the report.
    let status = child.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.context("cannot start `brigade train`")?;
    if !status.success() {
        let ranks = counted(ranks, "rank");
        bail!("the run on {ranks} failed; the others were not started, and nothing is compared");
    }
    Ok(())
}
