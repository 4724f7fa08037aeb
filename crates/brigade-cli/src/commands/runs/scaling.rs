//! `brigade scaling`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow, bail};
use brigade::command_line::{has_option, without};
use brigade::report::{METRICS_FILE, counted};
use brigade::{UsageError, exit};
use brigade_runs::scaling::scaling;
use brigade_runs::{Run, Setting, settings_of};
use clap::Args;

use super::place::RunPlace;
use super::say_unreadable;
use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade scaling runs/2 runs/4 runs/8                               runs on 2, 4 and 8 ranks
  brigade scaling runs/2 runs/4 --json                               the same for programs
  brigade scaling --measure 1,2 -- train --data corpus/ --steps 30   trains on 1 and 2 ranks
  brigade scaling --measure 1,2 --weak -- train --data corpus/       with a global batch that grows with the ranks

It compares runs of one model: the speed-up, the gap to linear, and what to change first. --measure trains on this machine.";

/// The setting that grows with the ranks, and its flag.
const BATCH: &str = "train.global_batch_size";
const BATCH_FLAG: &str = "--global-batch-size";

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
    /// With --measure: weak scaling. The global batch (--global-batch-size) is that of the smallest number of ranks, and grows with the ranks.
    #[arg(long, requires = "measure")]
    weak: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
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
    print(&match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&found.json())?),
        false => found.to_string(),
    })?;
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
    let commands = commands(args, &sizes, &folders)?;
    for ((ranks, folder), command) in sizes.iter().zip(&folders).zip(&commands) {
        let s = if *ranks == 1 { "" } else { "s" };
        brigade::print_stderr(format_args!("measuring {ranks} rank{s} into {}", folder.display()));
        train(command, *ranks, folder)?;
    }
    Ok(folders)
}

/// What to run for each number of ranks. All are tried before the first run, so that none is refused after others were trained.
fn commands(args: &ScalingArgs, sizes: &[usize], folders: &[PathBuf]) -> anyhow::Result<Vec<Vec<OsString>>> {
    let (mut commands, mut of_smallest) = (Vec::new(), Vec::new());
    for (ranks, folder) in sizes.iter().zip(folders) {
        let mut command = args.command.clone();
        if args.weak && *ranks > sizes[0] {
            let batch = grown_batch(&of_smallest, sizes[0], *ranks).map_err(UsageError)?;
            command = without(&command, &[BATCH_FLAG], &[]);
            command.extend([BATCH_FLAG.to_owned(), batch.to_string()].map(OsString::from));
        }
        let settings = dry_run(&command, *ranks, folder)?;
        if commands.is_empty() {
            of_smallest = settings;
        }
        commands.push(command);
    }
    Ok(commands)
}

/// The global batch with as many samples for each of `ranks` as a run with these settings has for each of `smallest`.
fn grown_batch(settings: &[Setting], smallest: usize, ranks: usize) -> anyhow::Result<usize> {
    let batch = settings.iter().find(|setting| setting.name == BATCH);
    let Some(batch) = batch.and_then(|batch| batch.value.parse::<usize>().ok()) else {
        bail!("--weak is not possible: the configuration does not say {BATCH} ({BATCH_FLAG})");
    };
    match batch.checked_mul(ranks) {
        Some(whole) if whole.is_multiple_of(smallest) => Ok(whole / smallest),
        _ => bail!(
            "--weak is not possible with {BATCH} ({BATCH_FLAG}) = {batch} on {}: on {} the batch would not have a whole number of samples for each; it must be a \
            multiple of {smallest}",
            counted(smallest, "rank"),
            counted(ranks, "rank")
        ),
    }
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
    if has_option(&args.command, "--dry-run") {
        bail!("--dry-run cannot be given with --measure, which trains");
    }
    if let Some(there) = folders.iter().find(|folder| folder.join(METRICS_FILE).exists()) {
        bail!("--out {}: {} holds an earlier run; give another folder", args.out.display(), there.display());
    }
    Ok(())
}

/// The settings that a run would have.
///
/// # Errors
/// If training refuses them.
fn dry_run(command: &[OsString], ranks: usize, folder: &Path) -> anyhow::Result<Vec<Setting>> {
    let mut child = train_command(command, ranks, folder)?;
    let done = child.arg("--dry-run").stdin(Stdio::null()).output();
    let done = done.context("cannot start `brigade train`")?;
    if done.status.success() {
        return Ok(settings_of(&String::from_utf8_lossy(&done.stdout)));
    }
    brigade::print_stderr(String::from_utf8_lossy(&done.stderr).trim_end());
    let error = anyhow!("the run on {} is not possible; nothing was trained", counted(ranks, "rank"));
    match done.status.code() {
        Some(code) if code == i32::from(exit::USAGE) => Err(UsageError(error).into()),
        _ => Err(error),
    }
}

fn train(command: &[OsString], ranks: usize, folder: &Path) -> anyhow::Result<()> {
    let mut child = train_command(command, ranks, folder)?;
    // What it prints at its end would stand before the report.
    let status = child.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.context("cannot start `brigade train`")?;
    if !status.success() {
        let ranks = counted(ranks, "rank");
        bail!("the run on {ranks} failed; the others were not started, and nothing is compared");
    }
    Ok(())
}

/// `brigade train` on this many ranks, into this folder.
fn train_command(command: &[OsString], ranks: usize, folder: &Path) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(program);
    child.args(command).args(["--nproc-per-node", &ranks.to_string()]).arg("--out").arg(folder);
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_grows_with_the_ranks() {
        let of = |config, ranks| grown_batch(&settings_of(config), 2, ranks);
        let message = |config, ranks| of(config, ranks).unwrap_err().to_string();
        let unsaid = message("[train]\nsteps = 6\n", 4);
        assert!(unsaid.contains("does not say train.global_batch_size (--global-batch-size)"), "{unsaid}");
        let six = "[train]\nglobal_batch_size = 6\n";
        assert_eq!([2, 3, 8].map(|ranks| of(six, ranks).unwrap()), [6, 9, 24]);
        let uneven = message("[train]\nglobal_batch_size = 5\n", 3);
        let said = "= 5 on 2 ranks: on 3 ranks the batch would not have a whole number of samples for each";
        assert!(uneven.contains(said), "{uneven}");
    }
}
