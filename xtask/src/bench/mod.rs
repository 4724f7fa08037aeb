//! `cargo xtask bench`: Brigade beside PyTorch and DeepSpeed, on one machine and in one go.
//!
//! A section measures one thing. Its sides take turns, several times over, and the median counts; a peer that is
//! missing or fails leaves its cells empty, a failure of Brigade ends everything. Only one side runs at a time.

mod all_reduce;
mod child;
mod lines;
mod machine;
mod memory;
mod part;
mod peer;
mod pipeline;
mod samples;
mod saving;
mod sharding;
mod side;
mod start;
mod table;
mod together;
mod tokens;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::cargo;
use child::Child;
use part::Part;
use peer::{Kind, Peer};
use table::Page;

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
    /// The page's file [default: docs/book/src/benchmarks.md of the workspace, or none with --only].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only these sections.
    #[arg(long, value_name = "SECTION", value_enum, value_delimiter = ',')]
    only: Vec<Part>,
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

impl Args {
    /// The sections to measure, and the others.
    fn parts(&self) -> (Vec<Part>, Vec<Part>) {
        let all = Part::value_variants().iter();
        all.partition(|part| self.only.is_empty() || self.only.contains(part))
    }

    /// The page's file, if it has one.
    fn file(&self) -> Option<PathBuf> {
        let page = || cargo::root().join("docs/book/src/benchmarks.md");
        self.out.clone().or_else(|| self.only.is_empty().then(page))
    }
}

/// Builds, measures and writes the page.
pub fn run(args: &Args) -> Result<()> {
    let (parts, absent) = args.parts();
    let peer = Peer::find(args.peer_python.as_deref())?;
    let machine = machine::describe(peer.as_ref())?;
    for (package, program) in parts.iter().filter_map(|part| part.program()) {
        cargo::run(&mut cargo::command(&["bench", "-p", package, "--bench", program, "--no-run"]))?;
    }
    let brigade = cargo::build(&["build", "--release", "-p", "brigade-cli"])?;
    let folder = cargo::root().join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;

    let bench = Bench { brigade, peer, runs: args.runs };
    if parts.iter().any(|part| part.trains()) {
        bench.fill_the_token_cache()?;
    }
    let sections = parts.iter().map(|part| part.measure(&bench)).collect::<Result<Vec<_>>>()?;

    let names = parts.iter().filter_map(ValueEnum::to_possible_value);
    let names: Vec<_> = names.map(|value| value.get_name().to_owned()).collect();
    let only = (!args.only.is_empty())
        .then(|| (format!("--only {}", names.join(",")), absent.iter().map(|part| part.title()).collect()));
    let page = Page { machine: &machine, runs: args.runs, sections: &sections, only }.markdown();
    let file = args.file();
    if let Some(file) = &file {
        std::fs::write(file, &page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    println!("{page}");
    match file {
        Some(file) => eprintln!("written to {}", file.display()),
        None => eprintln!("not written to a file; --out FILE does that"),
    }
    Ok(())
}

/// `brigade train` with the model of `benches/peers/torch_bench.py`, on a mesh of pipeline stages and data-parallel
/// ranks. Its results go to [`results`] of `name`.
fn train(name: &str, [pp, dp]: [usize; 2], global_batch: usize, micro_batch: usize, steps: usize) -> String {
    let ranks = pp * dp;
    format!(
        "brigade train --config configs/gpt-13m.toml --standalone --nproc-per-node {ranks} --pp {pp} --dp {dp} \
         --global-batch-size {global_batch} --micro-batch-size {micro_batch} --steps {steps} \
         --set train.validation_samples=8 --checkpoint-every 0 --quiet --out {FOLDER}/{name}"
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
        self.start_training("warm-up", &train("warm-up", [1, 1], 4, 4, 1))?.finish()?.succeeded()
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
        let line = train("pair", [1, 2], 8, 4, STEPS);
        assert!(line.contains(
            "--nproc-per-node 2 --pp 1 --dp 2 --global-batch-size 8 --micro-batch-size 4 --steps 8"
        ));
        assert!(line.ends_with(" --out runs/bench/pair") && results("pair").ends_with("runs/bench/pair"));
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        <Line as clap::Parser>::try_parse_from(line.split_whitespace()).unwrap().args
    }

    #[test]
    fn only_some_sections_do_not_replace_the_page() {
        let all = args("bench");
        assert_eq!((all.parts().0.len(), all.parts().1.len()), (8, 0));
        assert!(all.file().unwrap().ends_with("docs/book/src/benchmarks.md"));
        let some = args("bench --only pipeline,sharding");
        assert_eq!(some.parts().0, [Part::Sharding, Part::Pipeline]);
        assert_eq!((some.parts().1.len(), some.file()), (6, None));
        assert_eq!(args("bench --only memory --out page.md").file(), Some("page.md".into()));
    }
}
