//! `brigade launch`

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use brigade::UsageError;
use brigade::launcher::{self, Detected, Event, ExitReason, LaunchArgs, LaunchConfig, Outcome};
use clap::Args;
use tempfile::TempDir;

pub const EXAMPLES: &str = "\
Examples:
  brigade launch --nproc-per-node 4 -- ./train --lr 1e-3
  brigade launch --nproc-per-node 8 --nnodes 2 --node-rank 0 --rdzv-endpoint a:29400 -- ./train

Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and BRIGADE_TOKEN \
in its environment. Rank 0's output is shown; the output of every rank is saved in --log-dir (by default a temporary \
folder that is kept only if a rank fails). Several nodes need the same BRIGADE_TOKEN.

If a rank fails, all ranks are stopped, and restarted with --max-restarts. SIGTERM and SIGUSR1 reach the ranks as SIGTERM; \
a rank that exits with 75 has saved its state.

Exit codes: 0 all ranks are done, 1 a rank failed, 2 wrong usage, 75 preempted, 130 interrupted.";

#[derive(Debug, Args)]
pub struct CommandArgs {
    #[command(flatten)]
    world: LaunchArgs,
    /// The program that each rank runs, and its arguments.
    #[arg(last = true, required = true, num_args = 1.., value_name = "PROGRAM ARGS")]
    program: Vec<OsString>,
}

pub fn run(args: CommandArgs) -> anyhow::Result<ExitCode> {
    let outcome = launch_ranks(args).map_err(|error| match error.downcast_ref::<launcher::Error>() {
        Some(known) if known.exit_code() != brigade::exit::USAGE => error,
        _ => UsageError(error).into(),
    })?;
    if !matches!(outcome, Outcome::Done | Outcome::Preempted { .. }) {
        brigade::print_stderr(format_args!("brigade: {outcome}"));
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

fn launch_ranks(args: CommandArgs) -> anyhow::Result<Outcome> {
    let environment = |name: &str| std::env::var(name).ok();
    let detected = launcher::detect(&args.world, &environment)?;
    let Detected::Node(node) = &detected else {
        bail!("this process is already a rank ({detected}); run the program directly, or give --standalone");
    };
    let token = detected.token(&environment)?;
    let mut words = args.program.into_iter();
    let program = words.next().context("which program? give it after --")?;
    let logs = match args.world.log_dir.clone() {
        Some(folder) => Logs::Given(folder),
        None => {
            let folder = tempfile::Builder::new().prefix("brigade-logs-").tempdir();
            Logs::Temporary(folder.context("cannot create a folder for logs; give --log-dir")?)
        }
    };
    let ranks = node.nproc_per_node.unwrap_or(1);
    let mut launch =
        LaunchConfig::local(program, ranks, token, logs.path()).on_node(node).with_flags(&args.world);
    launch.args = words.collect();
    let outcome = launcher::launch(&launch, &mut print_event)?;
    if let (Outcome::Failed(_), Logs::Temporary(folder)) = (&outcome, logs) {
        // The error message names the logs in it.
        drop(folder.keep());
    }
    Ok(outcome)
}

/// The folder of the ranks' logs.
enum Logs {
    Given(PathBuf),
    /// Removed with this value.
    Temporary(TempDir),
}

impl Logs {
    fn path(&self) -> &Path {
        match self {
            Self::Given(folder) => folder,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

/// Reports a killed rank at once, before the other ranks report that it is missing; also restarts, and nodes that leave
/// and join.
fn print_event(event: Event) {
    if let Some(text) = event.about_nodes() {
        brigade::print_stderr(format_args!("brigade: {text}"));
    }
    match event {
        Event::Exited(end) if matches!(end.reason, ExitReason::Signal(_)) && !end.stopped_by_launcher => {
            brigade::print_stderr(format_args!("brigade: {end}"))
        }
        Event::Restarting { number, of, failure } => {
            brigade::print_stderr(format_args!(
                "brigade: {failure}\nbrigade: starting again, restart {number} of {of}"
            ));
        }
        _ => {}
    }
}
