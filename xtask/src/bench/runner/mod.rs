//! Runs what is measured: Brigade, its benchmarks and its peers, each as a child process.

mod child;
pub mod json_lines;
mod peer;
mod side;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cargo;

pub use child::Child;
pub use peer::{Kind, Peer};
pub use side::Side;

/// The longest that one run may take; DeepSpeed compiles an extension in its first.
const LIMIT: Duration = Duration::from_secs(900);
/// Steps of one training run; the first [`crate::bench::page::WARM_UP`] do not count.
pub const STEPS: usize = 8;
/// Results of the runs, removed at the end, relative to the workspace's root.
pub const FOLDER: &str = "runs/bench";
/// How a line begins whose command runs on every host of a network, after its flags and `--`.
const HOSTS: &str = "cargo xtask network ";
/// The name of the run that fills the cache of tokens.
pub const WARM_UP: &str = "warm-up";

/// What all sections need.
pub struct Runner {
    brigade: PathBuf,
    peer: Option<Peer>,
    /// Runs of each side.
    pub runs: u32,
}

/// `brigade train` with the model of `benches/peers/torch_bench.py`, on a mesh of pipeline stages and data-parallel
/// ranks. Its results go to [`results`] of `name`.
pub fn train(
    name: &str,
    [pp, dp]: [usize; 2],
    global_batch: usize,
    micro_batch: usize,
    steps: usize,
) -> String {
    let ranks = pp * dp;
    format!(
        "brigade train --config configs/gpt-13m.toml --standalone --nproc-per-node {ranks} --pp {pp} --dp {dp} \
         --global-batch-size {global_batch} --micro-batch-size {micro_batch} --steps {steps} \
         --set train.validation_samples=8 --checkpoint-every 0 --quiet --out {FOLDER}/{name}"
    )
}

/// The folder that a run of [`train`] writes to.
pub fn results(name: &str) -> PathBuf {
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

impl Runner {
    /// With `brigade` built, and an empty folder for results.
    pub fn new(brigade: PathBuf, peer: Option<Peer>, runs: u32) -> Result<Self> {
        let folder = cargo::root().join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { brigade, peer, runs })
    }

    /// Removes the results of all runs.
    pub fn remove_results(&self) -> Result<()> {
        let folder = cargo::root().join(FOLDER);
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
    }

    /// Starts a command line in the workspace's root; its output goes to files named after `name`.
    pub fn start(&self, name: &str, line: &str) -> Result<Child> {
        let mut command = self.command(line)?;
        command.current_dir(cargo::root());
        Child::start(command, name, &cargo::root().join(FOLDER), LIMIT)
    }

    fn command(&self, line: &str) -> Result<Command> {
        if let Some((flags, on_hosts)) = line.strip_prefix(HOSTS).and_then(|rest| rest.split_once(" -- ")) {
            let inner = self.command(on_hosts)?;
            // The hosts end with this program, in whatever way it ends.
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL"]).arg(std::env::current_exe()?).arg("network");
            command.args(flags.split_whitespace()).arg("--").arg(inner.get_program()).args(inner.get_args());
            command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
            return Ok(command);
        }
        let (variables, program, args) = words(line);
        let mut command = match (program, &self.peer) {
            ("brigade", _) => Command::new(&self.brigade),
            ("cargo", _) => Command::new(cargo::program()),
            (_, Some(peer)) => peer.command(program),
            (_, None) => Command::new(program),
        };
        command.envs(variables).args(args);
        Ok(command)
    }

    /// Starts a run of [`train`], without results of an earlier one.
    pub fn start_training(&self, name: &str, line: &str) -> Result<Child> {
        let folder = results(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        self.start(name, line)
    }

    /// Runs [`train`] to its end and gives its steps.
    pub fn steps(&self, name: &str, line: &str) -> Result<Vec<Value>> {
        self.start_training(name, line)?.finish()?.succeeded()?;
        metrics(&results(name))
    }

    /// The JSON lines of a peer: none where it is not installed or fails before it prints any. Whatever went wrong
    /// is added to `notes`.
    pub fn peer(&self, kind: Kind, name: &str, line: &str, notes: &mut Vec<String>) -> Result<Vec<Value>> {
        if !self.has(kind) {
            return Ok(Vec::new());
        }
        let end = self.start(name, line)?.finish()?;
        let found = json_lines::objects(&end.stdout);
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

    pub fn has(&self, kind: Kind) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.has(kind))
    }

    /// The text for cells of a peer that has no figures.
    pub fn absent(&self, kind: Kind) -> &'static str {
        if self.has(kind) { "failed" } else { "not installed" }
    }

    pub fn fill_token_cache(&self) -> Result<()> {
        eprintln!("preparing the tokens");
        self.start_training(WARM_UP, &train(WARM_UP, [1, 1], 4, 4, 1))?.finish()?.succeeded()
    }

    /// Reports progress on the terminal.
    pub fn progress(&self, run: u32, what: &str, figure: impl std::fmt::Display) {
        eprintln!("run {run} of {}: {what}: {figure}", self.runs);
    }
}

/// The steps that a run recorded.
pub fn metrics(folder: &Path) -> Result<Vec<Value>> {
    let path = folder.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let steps = json_lines::objects(&text);
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
    fn a_command_on_hosts_is_this_program_s() {
        let runner = Runner { brigade: "/b/brigade".into(), peer: None, runs: 1 };
        let command = runner.command("cargo xtask network --hosts 2 -- A=1 brigade train --quiet").unwrap();
        let own = std::env::current_exe().unwrap();
        let args: Vec<_> = command.get_args().collect();
        let own = own.to_str().unwrap();
        assert_eq!(
            args,
            ["--pdeathsig", "KILL", own, "network", "--hosts", "2", "--", "/b/brigade", "train", "--quiet"]
        );
        assert_eq!(command.get_envs().collect::<Vec<_>>(), [("A".as_ref(), Some("1".as_ref()))]);
    }

    #[test]
    fn training_leaves_its_results_where_they_are_read() {
        let line = train("pair", [1, 2], 8, 4, STEPS);
        assert!(line.contains(
            "--nproc-per-node 2 --pp 1 --dp 2 --global-batch-size 8 --micro-batch-size 4 --steps 8"
        ));
        assert!(line.ends_with(" --out runs/bench/pair") && results("pair").ends_with("runs/bench/pair"));
    }
}
