//! `brigade submit`

mod config_file;
mod destination;
mod dry_run;
mod fit;
mod stores;
mod target;

use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, anyhow, bail};
use brigade::launcher::NodeCount;
use brigade::{UsageError, exit, parse_whole_number};
use brigade_submit::{
    Answer, Console, Ending, Error, Folders, GpuKind, Job, Lacking, job_name, missing_program, over_ssh,
    submit, write,
};
use clap::Args;
use tempfile::TempDir;

use super::launch;
use super::train::TrainArgs;
use crate::config::Config;
use crate::output::print;
use destination::Destination;
use dry_run::{Found, dry_run};
use target::{SystemName, TargetArgs};

pub const EXAMPLES: &str = "\
Examples:
  brigade submit --to slurm --nodes 4 --gpus 8 -- train --config my.toml --out /shared/runs/a
  brigade submit --to jobset --nodes 4 --gpus 8 --gpu-kind h100-80gb --image me/brigade:1 \\
      --volume data:/data -- train --config /data/my.toml --out /data/runs/a
  brigade submit --to vertex --region europe-west4 --nodes 4 --gpus 8 --gpu-kind a100-80gb \\
      --image … --token-file gs://bucket/token -- train --out gs://bucket/runs/a
  brigade submit --to ssh --nodes 2 --gpus 0 --hosts one,two -- train --out /shared/runs/a
  brigade submit --to ssh --nodes 2:4 --gpus 8 --hosts a,b,c,d -- train --out /shared/runs/a
  brigade submit … --dry-run    show what would be submitted, and what is missing

The words after -- are the command of each node; --resume auto and the number of ranks are added. \
Several nodes share a secret: see --token-file and --token-secret. Ctrl-C asks whether to cancel the job.

Exit codes: 0 done or left to run, 1 failed, 2 wrong usage, 75 saved and stopped (ssh), 130 cancelled.";

#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// What runs the job.
    #[arg(long, value_enum)]
    to: SystemName,
    /// Nodes: a number, or MIN:MAX for hosts over SSH that may come and go.
    #[arg(long, value_name = "N|MIN:MAX", default_value_t = 1.into(), allow_negative_numbers = true, value_parser = parse_nodes)]
    nodes: NodeCount,
    /// GPUs per node, one rank each; 0 for ranks on the CPU.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = parse_whole_number::<usize>)]
    gpus: usize,
    /// The kind of GPU, as `brigade plan` calls it: a100-80gb, h100-80gb, …
    #[arg(long, value_name = "KIND", value_parser = gpu_kind)]
    gpu_kind: Option<&'static GpuKind>,
    /// The job's name [default: the last part of --out or --resume].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The program that the nodes start: brigade, or one built on it.
    #[arg(long, value_name = "PROGRAM", default_value = "brigade")]
    program: String,
    /// An environment variable for the nodes; can be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = target::variable)]
    env: Vec<(String, String)>,
    /// Seconds that the ranks have to save a checkpoint when they are told to stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, allow_negative_numbers = true, value_parser = parse_whole_number::<u64>)]
    grace: u64,
    /// How often the ranks are restarted after a failure: by the system, or by Brigade's launcher with Slurm and Vertex AI; preemptions
    /// that saved do not count.
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = parse_whole_number::<u32>)]
    restarts: u32,
    /// Write the manifests into a folder instead, and print how to submit them [the folder's default: the job's name].
    #[arg(long, value_name = "DIR", num_args = 0..=1, conflicts_with = "dry_run")]
    render: Option<Option<PathBuf>>,
    /// Print the manifests, whether the model fits, and what is missing; submit nothing.
    #[arg(long)]
    dry_run: bool,
    /// What a GPU costs for an hour, in your currency and with your discounts: with --dry-run, what the training costs.
    #[arg(long, value_name = "PRICE", requires = "dry_run", allow_negative_numbers = true, value_parser = price)]
    price_per_gpu_hour: Option<f64>,
    /// Submit without waiting for the job.
    #[arg(long)]
    detach: bool,
    /// The command of each node.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<String>,
    /// Last, as its heading would be that of all flags after it.
    #[command(flatten)]
    target: TargetArgs,
}

/// What was found out about the buckets of a job, a line each. The nodes may have other rights than this machine, so only a bucket that does not exist is an error.
#[derive(Debug, Default)]
struct StoreChecks {
    /// Buckets that cannot be used from here.
    missing: Vec<String>,
    /// Those that nobody was asked about.
    unknown: Vec<String>,
}

fn gpu_kind(text: &str) -> Result<&'static GpuKind, String> {
    GpuKind::named(text).map_err(|error| error.to_string())
}

fn price(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "it must be a number, 0 or more, such as 2.5".into())
}

pub fn run(args: &SubmitArgs) -> anyhow::Result<ExitCode> {
    let Checked { job, place, train, config, absent, placed } = checked(args).map_err(UsageError)?;
    let secrets = args.target.secret_variables();
    let stores = stores::look(&job, &secrets, config.as_ref()).map_err(UsageError)?;
    let current = current_folder()?;
    // Files that are only written are for another time, or another machine.
    let image = args.target.lacking_in_image(&job, args.render.is_none().then_some(&*current));
    let unchecked = notes(args, &job, config.as_ref(), &stores, &image);
    let notes: Vec<String> = placed.into_iter().chain(unchecked).collect();
    let own_mesh = train.as_ref().map(|train| fit::own_mesh(train, &job)).transpose();
    if args.dry_run {
        let is_whole = absent.is_empty();
        let found = Found { is_whole, missing: [absent, stores.missing, image.missing].concat(), notes };
        return dry_run(args, &job, &place, found, train.as_ref(), own_mesh);
    }
    own_mesh.map_err(|error| UsageError(error.context("the command after --")))?;
    stores.missing.iter().for_each(|line| brigade::print_stderr(format_args!("brigade: missing: {line}")));
    notes.iter().for_each(|line| brigade::print_stderr(format_args!("brigade: {line}")));
    let manifests = place.manifests(&job);
    if let Some(folder) = &args.render {
        let folder = folder.as_deref().unwrap_or(Path::new(&job.name));
        write(&manifests, folder)?;
        let files: Vec<String> =
            manifests.iter().map(|file| folder.join(&file.file).display().to_string()).collect();
        print(&format!("{}\n{}", files.join("\n"), place.manual_steps(&job, folder)))?;
        return Ok(ExitCode::from(exit::DONE));
    }
    if let Some(missing) = missing_program(place.program()) {
        return Err(UsageError(missing.into()).into());
    }
    refuse_what_is_missing(&job, &place, image.missing)?;
    let interrupted = Arc::new(AtomicBool::new(args.detach));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&interrupted))
        .context("cannot wait for Ctrl-C")?;
    let mut console = Console {
        say: &mut |line| brigade::print_stderr(line),
        interrupted: &interrupted,
        ask: &mut || if args.detach { Answer::Leave } else { ask(&place) },
    };
    let code = match &place {
        Destination::Hosts(ssh) => over_ssh(ssh, &job, &mut console).map_err(usage)?,
        Destination::System(system) => {
            let manifests = manifests_folder()?;
            // Slurm's output lies in the folder where the job was submitted.
            let folders = Folders { manifests: manifests.path(), current: &current };
            match submit(&**system, &job, folders, &mut console).map_err(usage)? {
                Ending::Done | Ending::Left => exit::DONE,
                Ending::Failed => exit::FAILED,
                Ending::Cancelled => exit::INTERRUPTED,
            }
        }
    };
    Ok(ExitCode::from(code))
}

/// Refuses a job that needs something of its system's, or of its hosts, which is not there. What the system itself does not take, it refuses as a whole when it
/// gets it. `missing` is what is known to be missing before it is asked.
fn refuse_what_is_missing(job: &Job, place: &Destination, missing: Vec<String>) -> anyhow::Result<()> {
    let Lacking { missing: also, unknown, notes } = place.lacking(job, &current_folder()?);
    let missing = [missing, also].concat();
    unknown.iter().for_each(|line| brigade::print_stderr(format_args!("brigade: not checked: {line}")));
    notes.iter().for_each(|line| brigade::print_stderr(format_args!("brigade: {line}")));
    if !missing.is_empty() {
        bail!("nothing was submitted, as the job needs: {}", missing.join("; "));
    }
    Ok(())
}

/// What was not checked, a line each.
fn notes(
    args: &SubmitArgs,
    job: &Job,
    config: Option<&Config>,
    stores: &StoreChecks,
    image: &Lacking,
) -> Vec<String> {
    let mut unchecked = [args.target.unchecked(args.to, job), image.unknown.clone()].concat();
    if args.to == SystemName::Vertex && config.is_none() && job.may_place_checkpoints() {
        unchecked.push(
            "whether the file of --config sets checkpoint.dir: the job saves beside its results, whatever the file says; --set checkpoint.dir=gs://… says another \
             place"
                .into(),
        );
    }
    let unchecked = unchecked.into_iter();
    unchecked.map(|line| format!("not checked: {line}")).chain(stores.unknown.iter().cloned()).collect()
}

fn usage(error: Error) -> anyhow::Error {
    if error.is_usage() { UsageError(error.into()).into() } else { error.into() }
}

/// A number of nodes, or bounds of it.
fn parse_nodes(text: &str) -> Result<NodeCount, String> {
    match text.split_once(':') {
        None => parse_whole_number::<usize>(text).map(NodeCount::from),
        Some((least, most)) => {
            Ok(NodeCount { least: parse_whole_number(least)?, most: parse_whole_number(most)? })
        }
    }
}

/// A job that was checked.
struct Checked {
    job: Job,
    place: Destination,
    /// The flags of `brigade train`, if that is what the nodes run.
    train: Option<TrainArgs>,
    /// The settings, as far as they are known here.
    config: Option<Config>,
    /// Options that are needed and were not given, a line each; only for a dry run.
    absent: Vec<String>,
    /// What to say of a file whose settings are part of the command.
    placed: Option<String>,
}

/// The job and its target, after checking them.
fn checked(args: &SubmitArgs) -> anyhow::Result<Checked> {
    let mut job = Job {
        name: String::new(),
        nodes: args.nodes.most,
        least_nodes: (args.nodes.least != args.nodes.most).then_some(args.nodes.least),
        gpus: args.gpus,
        gpu_kind: args.gpu_kind,
        program: args.program.clone(),
        args: args.command.clone(),
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        checkpoint_dir: None,
        grace_seconds: args.grace,
        max_restarts: args.restarts,
    };
    job.name = args.name.clone().unwrap_or_else(|| job.out().map_or_else(|| "brigade".into(), job_name));
    if args.dry_run {
        job.check_given()?
    } else {
        job.check()?
    }
    let mut train = train_args(&job)?;
    if !job.is_training() && job.args.first().is_some_and(|first| first == "launch") {
        parsed::<launch::CommandArgs>("launch", &job)?;
    }
    if args.detach && args.to == SystemName::Ssh {
        bail!("--detach cannot be used with --to ssh: the job ends with this command");
    }
    let place = args.target.destination(args.to)?;
    let mut placed = None;
    if let Some(file) = args.target.config_only_here(args.to, &job).map(Path::to_owned) {
        let shown = file.display();
        let in_command = train.as_ref().and_then(|train| config_file::in_command(&job, train, &file));
        match in_command {
            Some((with_settings, its_args)) => {
                with_settings.check_given().with_context(|| {
                    format!("the settings of --config {shown}, which become part of the command")
                })?;
                (job, train) = (with_settings, Some(its_args));
                placed = Some(format!(
                    "the settings of {shown} are part of the command, as the nodes do not see that file"
                ));
            }
            // Whatever is wrong with them is said below.
            None if file.is_absolute() || train.as_ref().is_some_and(fit::is_wrong) => {}
            None => bail!(
                "--config {shown} is not possible: the nodes do not see the files of this machine; give the path that it has in their image or in a folder that \
                 they share, or give its settings with --set"
            ),
        }
    }
    let config = train.as_ref().and_then(fit::configured_here);
    let folder = config.as_ref().map(|config| config.settings.checkpoint.dir.clone());
    job.checkpoint_dir = folder.filter(|folder| !folder.is_empty());
    let absent: Vec<Error> = job.missing().into_iter().chain(place.missing(&job)).collect();
    if absent.is_empty() || !args.dry_run {
        place.check(&job)?;
    }
    let absent = absent.iter().map(ToString::to_string).collect();
    Ok(Checked { job, place, train, config, absent, placed })
}

/// The flags of `brigade train`, if that is what the nodes run: whatever it refuses is refused here.
fn train_args(job: &Job) -> anyhow::Result<Option<TrainArgs>> {
    if !job.is_training() || job.args.first().is_none_or(|first| first != "train") {
        return Ok(None);
    }
    let mut train: TrainArgs = parsed("train", job)?;
    // What is there is of no interest here, and the target has refused what it cannot take.
    train.standard.out = train.standard.out.map(|out| out.to_string_lossy().replace("://", "/").into());
    Ok(Some(train))
}

/// The arguments of a command of `brigade`.
fn parsed<A: Args>(command: &'static str, job: &Job) -> anyhow::Result<A> {
    let matches =
        A::augment_args(clap::Command::new(command)).try_get_matches_from(&job.args).map_err(|error| {
            let text = error.to_string();
            let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
            let first = lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned();
            anyhow!("the command after --: {first}")
        })?;
    Ok(A::from_arg_matches(&matches)?)
}

fn current_folder() -> anyhow::Result<PathBuf> {
    std::env::current_dir().context("the current folder")
}

/// A folder that nobody else writes to, which ends with this value.
fn manifests_folder() -> anyhow::Result<TempDir> {
    tempfile::Builder::new().prefix("brigade-").tempdir().context("cannot create a folder for the manifests")
}

/// Asks what to do after Ctrl-C. If nobody can answer, a system's job keeps running; one on hosts, which does not outlive this command, ends.
fn ask(place: &Destination) -> Answer {
    let (unasked, said, question) = match place {
        Destination::System(_) => (
            Answer::Leave,
            "the job runs on",
            "\nCancel the job [c], leave it running and quit [l], or keep following it [f, or Enter]?",
        ),
        Destination::Hosts(_) => (
            Answer::Cancel,
            "the ranks save and end",
            "\nLet the ranks save and end [c], or keep following the job [f, or Enter]?",
        ),
    };
    if !std::io::stdin().is_terminal() {
        brigade::print_stderr(said);
        return unasked;
    }
    brigade::print_stderr(question);
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) | Err(_) => unasked,
        Ok(_) => match line.trim() {
            "c" | "C" => Answer::Cancel,
            "l" | "L" => Answer::Leave,
            _ => Answer::Follow,
        },
    }
}
