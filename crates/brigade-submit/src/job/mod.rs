//! What is to run, on whatever system.

mod check;
mod forms;
mod secrets;
mod variables;
mod words;

use std::collections::BTreeMap;

use brigade_launch::NodeCount;

pub use forms::job_name;
pub(crate) use forms::{bucket_path, image, needed_image};
pub(crate) use secrets::no_secret;
pub(crate) use variables::{check_variable, places_ranks};
use words::Words;

use crate::machines::GpuKind;

/// How long after the ranks' own time to save a node may take to end: other ranks, logs, the container.
const END_SECONDS: u64 = 30;

/// The most that `--max-restarts` takes.
const MOST_LAUNCHER_RESTARTS: u32 = 1_000_000;

/// What `brigade` is built for, as names of its binaries have it.
const BACKENDS: [&str; 3] = ["cpu", "cuda", "wgpu"];

/// How long nodes that run wait for those that the system has no machine for yet.
const PATIENCE_SECONDS: u32 = 24 * 3600;

/// A command to run on each of several nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name, by which the system knows it.
    pub name: String,
    /// Nodes; in an elastic job the most.
    pub nodes: usize,
    /// The fewest nodes that the job continues with, if it is elastic.
    pub least_nodes: Option<usize>,
    /// GPUs of each node, with a rank each; 0 for ranks on the CPU.
    pub gpus: usize,
    /// What GPUs these are, where it matters.
    pub gpu_kind: Option<&'static GpuKind>,
    /// The program: `brigade`, or one that is built on it.
    pub program: String,
    /// Its arguments, with `train` or `launch` first if it is `brigade`.
    pub args: Vec<String>,
    /// Environment variables beside those that Brigade sets.
    pub env: BTreeMap<String, String>,
    /// Where the settings in the file of `--config` put checkpoints, if they do and the file is on this machine.
    pub checkpoint_dir: Option<String>,
    /// Seconds that the ranks have to save a checkpoint, unless the arguments say it.
    pub grace_seconds: u64,
    /// How often the system starts the job again after a failure, where it counts. Preemptions do not count.
    pub max_restarts: u32,
}

impl Job {
    /// How many nodes, as `--nodes` and `--nnodes` have it.
    pub(crate) fn node_count(&self) -> NodeCount {
        NodeCount { least: self.least_nodes.unwrap_or(self.nodes), most: self.nodes }
    }

    /// The whole command of a node: the program, and its arguments with those that follow from the job.
    pub(crate) fn command(&self, placement: &[String]) -> Vec<String> {
        let words = self.words();
        let mut own = placement.to_vec();
        let mut add = |flag: &str, value: String| {
            if !words.has(flag) {
                own.extend([flag.to_owned(), value]);
            }
        };
        add("--nproc-per-node", if self.gpus > 0 { self.gpus.to_string() } else { "auto".into() });
        add("--preemption-grace", self.grace_seconds.to_string());
        if self.is_training() {
            add("--resume", "auto".into());
            if self.gpus > 0 && words.setting("--backend", "compute.backend").is_none() {
                add("--backend", "cuda".into());
            }
        }
        let (first, rest) = words.parts();
        let own = own.into_iter();
        std::iter::once(self.program.clone())
            .chain(first.iter().cloned())
            .chain(own)
            .chain(rest.iter().cloned())
            .collect()
    }

    /// The flag that lets the launchers restart failed ranks, where the system does not count restarts; unless the arguments have it.
    pub(crate) fn launcher_restarts(&self) -> Vec<String> {
        const FLAG: &str = "--max-restarts";
        match self.max_restarts.min(MOST_LAUNCHER_RESTARTS) {
            0 => Vec::new(),
            _ if self.words().has(FLAG) => Vec::new(),
            restarts => vec![FLAG.into(), restarts.to_string()],
        }
    }

    /// The flag that lets launchers wait for each other as long as nodes may wait for machines, where the system starts them one by one, or starts one again; unless the arguments have
    /// it.
    pub(crate) fn patience(&self) -> Vec<String> {
        const FLAG: &str = "--rdzv-timeout";
        match self.nodes {
            1 => Vec::new(),
            _ if self.words().has(FLAG) => Vec::new(),
            _ => vec![FLAG.into(), PATIENCE_SECONDS.to_string()],
        }
    }

    /// Seconds from the signal until the system may kill a node: longer than the save takes.
    pub(crate) fn end_seconds(&self) -> u64 {
        seconds(&self.grace().1).unwrap_or_default().saturating_add(END_SECONDS)
    }

    /// The option that says how long the ranks have to save, and what it says.
    pub(crate) fn grace(&self) -> (&'static str, String) {
        match self.words().value("--preemption-grace") {
            Some(given) => ("--preemption-grace", given.to_owned()),
            None => ("--grace", self.grace_seconds.to_string()),
        }
    }

    /// The variables of a node: those of NCCL for its machine, and the user's own, which win.
    pub(crate) fn environment(&self, interface: Option<&str>) -> BTreeMap<String, String> {
        let mut all = match (self.gpus, self.nodes) {
            (0, _) | (_, 1) => BTreeMap::new(),
            _ => self.gpu_kind.map_or_else(BTreeMap::new, |kind| kind.nccl(self.gpus, interface)),
        };
        all.extend(self.env.clone());
        all
    }

    /// Whether the command trains a model with Brigade, as opposed to a program that only its launcher knows.
    pub fn is_training(&self) -> bool {
        !self.is_brigade() || self.words().subcommand() == Some("train")
    }

    /// The backend that the command trains with on GPUs, where it is known before it runs.
    pub fn backend(&self) -> Option<&str> {
        let given = self.words().setting("--backend", "compute.backend").unwrap_or("cuda");
        (self.gpus > 0 && self.is_training() && ["cuda", "wgpu"].contains(&given)).then_some(given)
    }

    /// What the command reads, with the flags: settings, text and a model.
    pub fn read_paths(&self) -> Vec<(&'static str, &str)> {
        let given = ["--config", "--data", "--model"].map(|flag| (flag, self.words().value(flag)));
        given.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
    }

    /// The folder of results, as given.
    pub fn out(&self) -> Option<&str> {
        self.results().map(|(_, folder)| folder)
    }

    /// The folder of results, and the flag that names it: that of a run to resume stays its own.
    pub(crate) fn results(&self) -> Option<(&'static str, &str)> {
        self.paths().into_iter().find(|(flag, _)| matches!(*flag, "--out" | "--resume"))
    }

    /// The folder or the bucket's URL of checkpoints, if they are not in the folder of results, and what says so.
    pub(crate) fn checkpoints(&self) -> Option<(&'static str, &str)> {
        if let Some(folder) = self.words().set("checkpoint.dir") {
            return Some(("--set checkpoint.dir", folder)).filter(|_| !folder.is_empty());
        }
        self.checkpoint_dir.as_deref().map(|folder| ("checkpoint.dir", folder))
    }

    /// Whether the settings are in a file that is not known here and may say where checkpoints go, which the command does not.
    pub fn may_place_checkpoints(&self) -> bool {
        let words = self.words();
        self.checkpoint_dir.is_none() && words.has("--config") && words.set("checkpoint.dir").is_none()
    }

    /// The folder of the run to resume, if only its own settings may say where checkpoints go.
    pub fn resumed_without_checkpoints(&self) -> Option<&str> {
        let (flag, folder) = self.results()?;
        (flag == "--resume" && self.checkpoints().is_none()).then_some(folder)
    }

    /// What the command names in the nodes' file system, with the flags.
    pub(crate) fn paths(&self) -> Vec<(&'static str, &str)> {
        let given = ["--out", "--resume", "--config", "--model"].map(|flag| (flag, self.words().value(flag)));
        let known = given.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        known.filter(|known| *known != ("--resume", "auto")).collect()
    }

    /// This job with another value of a flag that it has.
    pub(crate) fn with(&self, flag: &str, value: String) -> Self {
        Self { args: self.words().replaced(flag, value), ..self.clone() }
    }

    /// This job with settings, each as `--set` has it, in place of the file of `--config`. They come first, as all else in the command comes before the file's.
    pub fn with_settings(&self, settings: Vec<String>) -> Self {
        let mut args = self.words().without("--config");
        let at = self.words().parts().0.len();
        args.splice(at..at, settings.into_iter().flat_map(|setting| ["--set".to_owned(), setting]));
        Self { args, ..self.clone() }
    }

    /// This job with its checkpoints in this folder, if they are nowhere else.
    pub(crate) fn with_checkpoints(&self, folder: String) -> Self {
        let mut args = self.args.clone();
        let words = self.words();
        if self.checkpoint_dir.is_none() && words.set("checkpoint.dir").is_none() {
            let end = words.own().len();
            args.splice(end..end, ["--set".into(), format!("checkpoint.dir={folder}")]);
        }
        Self { args, ..self.clone() }
    }

    /// This job with every `$` doubled, for a container that would otherwise replace `$(NAME)` in its command and variables.
    pub(crate) fn escaped(&self) -> Self {
        let escaped = |text: &String| text.replace('$', "$$");
        Self {
            program: escaped(&self.program),
            args: self.args.iter().map(escaped).collect(),
            env: self.env.iter().map(|(name, value)| (name.clone(), escaped(value))).collect(),
            ..self.clone()
        }
    }

    /// Also under the names that `cargo xtask dist` gives, `brigade-VERSION-BACKEND-TARGET`, and others that begin so, with its commands.
    fn is_brigade(&self) -> bool {
        let name = self.program.rsplit('/').next().unwrap_or_default();
        let is_built = |rest: &str| {
            rest.starts_with(|first: char| first.is_ascii_digit())
                && BACKENDS.iter().any(|backend| rest.contains(&format!("-{backend}-")))
        };
        let has_command =
            || self.args.first().is_some_and(|first| ["train", "launch"].contains(&first.as_str()));
        name == "brigade" || name.strip_prefix("brigade-").is_some_and(|rest| is_built(rest) || has_command())
    }

    /// Whether the command gives a setting by `--set`.
    pub(crate) fn sets(&self, name: &str) -> bool {
        self.words().set(name).is_some()
    }

    fn words(&self) -> Words<'_> {
        Words { all: &self.args, has_subcommand: self.is_brigade() }
    }
}

/// Whole seconds that are not less than those given, which are written as the launcher reads them.
fn seconds(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|_| is_plain).map(|seconds| seconds.ceil() as u64)
}
