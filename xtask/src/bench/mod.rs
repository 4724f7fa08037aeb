//! `cargo xtask bench`: Brigade beside PyTorch and DeepSpeed, on one machine and in one go.
//!
//! A section measures one thing. Its sides take turns, several times over, and the median counts; a peer that is
//! missing or fails leaves its cells empty, a failure of Brigade ends everything. Only one side runs at a time.

mod all_reduce;
mod child;
mod lines;
mod machine;
mod peer;
mod samples;
mod start;
mod table;
mod together;
mod tokens;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo;
use child::Child;
use peer::{Kind, Peer};

/// The longest that one run may take; DeepSpeed compiles an extension in its first.
const LIMIT: Duration = Duration::from_secs(900);
/// Steps of one training run; the first [`lines::WARM_UP`] do not count.
const STEPS: usize = 8;
/// Results of the runs, removed at the end, relative to the workspace's root.
const FOLDER: &str = "runs/bench";

/// Options of `cargo xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Python that has torch and deepspeed [default: .venv-torch/bin/python, else python3].
    #[arg(long, value_name = "PATH")]
    peer_python: Option<PathBuf>,
    /// The table's file [default: docs/benchmarks.md of the workspace].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Runs of each side.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
}

/// What all sections need.
struct Bench {
    brigade: PathBuf,
    peer: Option<Peer>,
    runs: u32,
}

/// Builds, measures and writes the table.
pub fn run(args: &Args) -> Result<()> {
    let peer = Peer::find(args.peer_python.as_deref())?;
    let machine = machine::describe(peer.as_ref())?;
    cargo::run(&mut cargo::command(&["bench", "-p", "brigade-comm", "--bench", "allreduce", "--no-run"]))?;
    let brigade = cargo::build(&["build", "--release", "-p", "brigade-cli"])?;
    let folder = cargo::root().join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;

    let bench = Bench { brigade, peer, runs: args.runs };
    bench.fill_the_token_cache()?;
    let sections = [
        tokens::measure(&bench)?,
        together::measure(&bench)?,
        all_reduce::measure(&bench)?,
        start::measure(&bench)?,
    ];

    let document = table::document(&machine, args.runs, &sections);
    let out = args.out.clone().unwrap_or_else(|| cargo::root().join("docs/benchmarks.md"));
    std::fs::write(&out, &document).with_context(|| format!("cannot write {}", out.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    println!("{document}");
    eprintln!("written to {}", out.display());
    Ok(())
}

/// `brigade train` with the model of `benches/peers/torch_bench.py`. Its results go to [`results`] of `name`.
fn train(name: &str, ranks: usize, global_batch: usize, micro_batch: usize, steps: usize) -> String {
    format!(
        "brigade train --config configs/gpt-13m.toml --standalone --nproc-per-node {ranks} --dp {ranks} \
         --global-batch-size {global_batch} --micro-batch-size {micro_batch} --steps {steps} \
         --set train.validation_samples=8 --quiet --out {FOLDER}/{name}"
    )
}

/// The folder that a run of [`train`] writes to.
fn results(name: &str) -> PathBuf {
    cargo::root().join(FOLDER).join(name)
}

/// The words of a command line: variables, program and arguments. None of ours needs quotes.
fn words(line: &str) -> (Vec<(&str, &str)>, &str, Vec<&str>) {
    let mut words = line.split_whitespace().peekable();
    let mut variables = Vec::new();
    while let Some(assignment) = words.peek().and_then(|word| word.split_once('=')) {
        variables.push(assignment);
        words.next();
    }
    (variables, words.next().unwrap_or_default(), words.collect())
}

impl Bench {
    /// Starts a command line in the workspace's root; its output goes to files named after `name`.
    fn start(&self, name: &str, line: &str) -> Result<Child> {
        let (variables, program, args) = words(line);
        let mut command = match (program, &self.peer) {
            ("brigade", _) => Command::new(&self.brigade),
            ("cargo", _) => Command::new(cargo::program()),
            (_, Some(peer)) => peer.command(program),
            (_, None) => Command::new(program),
        };
        command.current_dir(cargo::root()).envs(variables).args(args);
        Child::start(command, name, &cargo::root().join(FOLDER), LIMIT)
    }

    /// Starts a run of [`train`], without results of an earlier one.
    fn start_training(&self, name: &str, line: &str) -> Result<Child> {
        let folder = results(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        self.start(name, line)
    }

    /// Runs [`train`] to its end and gives its steps.
    fn steps(&self, name: &str, line: &str) -> Result<Vec<Value>> {
        self.start_training(name, line)?.finish()?.succeeded()?;
        metrics(&results(name))
    }

    /// Tokens per second of one run of [`train`].
    fn tokens_per_second(&self, name: &str, line: &str) -> Result<f64> {
        let rates = lines::numbers(&self.steps(name, line)?, "tokens_per_second");
        lines::steady(&rates)
            .with_context(|| format!("`{line}` recorded {} steps; more are needed", rates.len()))
    }

    /// The JSON lines of a peer: none where it is not installed or fails before it prints any. Whatever went wrong
    /// is added to `notes`.
    fn peer(&self, kind: Kind, name: &str, line: &str, notes: &mut Vec<String>) -> Result<Vec<Value>> {
        if !self.has(kind) {
            return Ok(Vec::new());
        }
        let end = self.start(name, line)?.finish()?;
        let found = lines::objects(&end.stdout);
        if !end.status.success() {
            let kept = if found.is_empty() {
                "before it printed a figure"
            } else {
                "after it printed the figures above"
            };
            let note = format!("`{line}` ended with {} {kept}.", end.status);
            eprintln!("{note}\n{}", end.last_lines());
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        Ok(found)
    }

    fn has(&self, kind: Kind) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.has(kind))
    }

    /// What stands in the cells of a peer that has no figures.
    fn absent(&self, kind: Kind) -> &'static str {
        if self.has(kind) { "failed" } else { "not installed" }
    }

    fn fill_the_token_cache(&self) -> Result<()> {
        eprintln!("preparing the tokens");
        self.start_training("warm-up", &train("warm-up", 1, 4, 4, 1))?.finish()?.succeeded()
    }

    /// Says how far it is.
    fn progress(&self, run: u32, what: &str, figure: impl std::fmt::Display) {
        eprintln!("run {run} of {}: {what}: {figure}", self.runs);
    }
}

/// The steps that a run recorded.
fn metrics(folder: &Path) -> Result<Vec<Value>> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let steps = lines::objects(&text);
    ensure!(!steps.is_empty(), "{} holds no step", path.display());
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_its_words() {
        let line = "LOCAL_SIZE=2 torchrun --standalone a.py --set x.y=1";
        let (variables, program, args) = words(line);
        assert_eq!((variables, program), (vec![("LOCAL_SIZE", "2")], "torchrun"));
        assert_eq!(args, ["--standalone", "a.py", "--set", "x.y=1"]);
    }

    #[test]
    fn training_leaves_its_results_where_they_are_read() {
        let line = train("pair", 2, 8, 4, STEPS);
        assert!(
            line.contains("--nproc-per-node 2 --dp 2 --global-batch-size 8 --micro-batch-size 4 --steps 8")
        );
        assert!(line.ends_with(" --out runs/bench/pair") && results("pair").ends_with("runs/bench/pair"));
    }
}
