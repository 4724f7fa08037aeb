//! `cargo xtask fuzz`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use brigade_fuzz::input::{Inputs, MAX_TRIES, minimise, payloads};
use brigade_fuzz::run::memory::Counting;
use brigade_fuzz::run::watch::{Ended, Notes, TIME_LIMIT, watch};
use brigade_fuzz::run::{Failure, run};
use brigade_fuzz::run::{Fault, check};
use brigade_fuzz::run::{memory, report};
use brigade_fuzz::target::Target;
use brigade_fuzz::targets::{ALL, named};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many smaller inputs are tried if each try starts a process.
const MAX_PROCESSES: usize = 100;

/// Feed damaged input to every parser of bytes from outside, and report what breaks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask fuzz", bin_name = "cargo xtask fuzz")]
struct Args {
    /// Inputs for each target.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    inputs: u64,
    /// Only these targets.
    #[arg(long = "target", value_name = "NAME,…", value_delimiter = ',', value_parser = target_named)]
    targets: Vec<&'static Target>,
    /// Seed of the inputs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Run one target once, on the content of this file.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Run one target in this process, and note each input's number in this file.
    #[arg(long, value_name = "PATH", hide = true, conflicts_with = "file")]
    worker: Option<PathBuf>,
}

fn target_named(name: &str) -> Result<&'static Target, String> {
    let names = || ALL.map(|target| target.name).join(", ");
    named(name).ok_or_else(|| format!("the targets are {}", names()))
}

fn main() -> Result<ExitCode> {
    let mut args = Args::parse();
    let passed = if let Some(file) = &args.file {
        run_file(only(&args.targets, "--file")?, file)?
    } else if let Some(numbers) = &args.worker {
        run_worker(only(&args.targets, "--worker")?, &args, numbers)?
    } else {
        if args.targets.is_empty() {
            args.targets = ALL.iter().collect();
        }
        all(&args)?
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn only(targets: &[&'static Target], flag: &str) -> Result<&'static Target> {
    ensure!(targets.len() == 1, "{flag} needs one --target, {} are given", targets.len());
    Ok(targets[0])
}

/// Runs the targets one after the other, each in a process of its own; whether nothing failed.
fn all(args: &Args) -> Result<bool> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let numbers = folder.path().join("number");
    let mut passed = true;
    println!("{}", report::heading());
    for target in &args.targets {
        let mut worker = this_program(target)?;
        worker.arg("--worker").arg(&numbers);
        worker.args(["--inputs", &args.inputs.to_string(), "--seed", &args.seed.to_string()]);
        let (number, fault) = match watch(&mut worker, &numbers, TIME_LIMIT)? {
            Ended::Exited(0) => continue,
            // It has printed why.
            Ended::Exited(1) => {
                passed = false;
                continue;
            }
            Ended::Exited(code) => bail!("the worker of {} ended with exit code {code}", target.name),
            Ended::Killed { number, signal } => (number, Fault::Died { how: format!("signal {signal}") }),
            Ended::TimedOut { number } => (number, Fault::TimedOut { seconds: TIME_LIMIT.as_secs() }),
        };
        passed = false;
        let mut input = Inputs::new(target, payloads(target)?, args.seed).get(number);
        if matches!(fault, Fault::Died { .. }) {
            let path = folder.path().join("input");
            input = minimise(&input, MAX_PROCESSES, |smaller| dies(target, smaller, &path).unwrap_or(false));
        }
        println!(
            "{}",
            report::save_failure(&report::folder(), target.name, &Failure { number, input, fault })?
        );
    }
    Ok(passed)
}

fn this_program(target: &Target) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("this program has no path")?);
    command.args(["--target", target.name]).stdin(Stdio::null());
    Ok(command)
}

/// Whether an input ends the process that runs it.
fn dies(target: &Target, input: &[u8], path: &Path) -> Result<bool> {
    std::fs::write(path, input)?;
    let mut command = this_program(target)?;
    command.arg("--file").arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(matches!(watch(&mut command, path, TIME_LIMIT)?, Ended::Killed { .. }))
}

/// Runs a target in this process and prints its line; whether nothing failed.
fn run_worker(target: &Target, args: &Args, numbers: &Path) -> Result<bool> {
    let mut numbers =
        Notes::create(numbers).with_context(|| format!("cannot write {}", numbers.display()))?;
    let inputs = Inputs::new(target, payloads(target)?, args.seed);
    let mut unnoted = None;
    let outcome =
        run(target, &inputs, args.inputs, |number| unnoted = numbers.note(number).err().or(unnoted.take()));
    if let Some(error) = unnoted {
        return Err(error).context("cannot note the number of an input");
    }
    println!("{}", report::line(target.name, &outcome));
    let Some(mut failure) = outcome.failure else { return Ok(true) };
    failure.input = minimise(&failure.input, MAX_TRIES, |smaller| {
        let noted = numbers.note(failure.number).is_ok();
        noted && check(target, smaller).is_err_and(|fault| fault.is_like(&failure.fault))
    });
    if let Err(fault) = check(target, &failure.input) {
        failure.fault = fault;
    }
    println!("{}", report::save_failure(&report::folder(), target.name, &failure)?);
    Ok(false)
}

/// Runs a target on one file; whether it passed.
fn run_file(target: &Target, file: &Path) -> Result<bool> {
    let input = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    match check(target, &input) {
        Ok(memory::Used { largest, peak, total }) => {
            println!("{}: passed; largest {largest}, peak {peak}, total {total} bytes", target.name);
            Ok(true)
        }
        Err(fault) => {
            println!("{}: {fault}", target.name);
            Ok(false)
        }
    }
}
