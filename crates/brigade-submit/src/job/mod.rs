//! What is to run, on whatever system.

mod forms;
mod secrets;
mod words;

use std::collections::BTreeMap;

use brigade_launch::MAX_WORLD_SIZE;

pub use forms::job_name;
pub(crate) use forms::{bucket_path, dns_label, image};
use words::Words;

use crate::error::{Error, Result};
use crate::machines::GpuKind;

/// How long after the ranks' own time to save a node may take to end: other ranks, logs, the container.
const END_SECONDS: u64 = 30;

/// Flags that place a node in its world, which the system's variables do.
const PLACED: [&str; 6] =
    ["--nnodes", "--node-rank", "--rdzv-endpoint", "--master-addr", "--master-port", "--standalone"];

/// A command to run on each of several nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name, by which the system knows it.
    pub name: String,
    /// Nodes.
    pub nodes: usize,
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
    /// Seconds that the ranks have to save a checkpoint, unless the arguments say it.
    pub grace_seconds: u64,
    /// How often the system starts the job again after a failure, where it counts. Preemptions do not count.
    pub max_restarts: u32,
}

impl Job {
    /// Checks what no system allows.
    ///
    /// # Errors
    /// If something cannot be.
    pub fn check(&self) -> Result<()> {
        if self.nodes == 0 {
            return Err(Error::value("--nodes", 0, format!("it must be from 1 to {MAX_WORLD_SIZE}")));
        }
        let ranks = self.nodes.saturating_mul(self.gpus.max(1));
        if ranks > MAX_WORLD_SIZE {
            let allowed = format!(
                "with --gpus {} that makes {ranks} ranks, but a world has at most {MAX_WORLD_SIZE}",
                self.gpus
            );
            return Err(Error::value("--nodes", self.nodes, allowed));
        }
        if self.gpus == 0
            && let Some(kind) = self.gpu_kind
        {
            let why = format!("how many {} does each node have?", kind.name);
            return Err(Error::Missing { option: "--gpus".into(), why });
        }
        let words = self.words();
        if self.is_brigade() && !matches!(words.subcommand(), Some("train" | "launch")) {
            let given = words.subcommand().unwrap_or("nothing");
            return Err(Error::value(
                "the command after --",
                given,
                "it must be train … or launch …, as for brigade itself; --program names another program",
            ));
        }
        for flag in PLACED {
            if words.has(flag) {
                return Err(Error::value(
                    flag,
                    words.value(flag).unwrap_or_default(),
                    "the system numbers the nodes; leave it out, and give --nodes",
                ));
            }
        }
        if words.value("--preemption-grace").is_some_and(|text| text.parse::<f64>().is_err()) {
            let given = words.value("--preemption-grace").unwrap_or_default();
            return Err(Error::value("--preemption-grace", given, "it must be a number of seconds"));
        }
        if let Some(value) = words.value("--nproc-per-node")
            && self.gpus > 0
            && value != self.gpus.to_string()
        {
            let allowed = format!("each GPU of --gpus {} has a rank; leave it out", self.gpus);
            return Err(Error::value("--nproc-per-node", value, allowed));
        }
        if self.is_training()
            && words.value("--out").is_none()
            && words.value("--resume").is_none_or(|value| value == "auto")
        {
            let why = "a restarted run must find its folder, so all nodes must share it";
            return Err(Error::Missing { option: "--out".into(), why: why.into() });
        }
        for name in self.env.keys() {
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if name.is_empty()
                || !name.chars().all(is_name)
                || name.starts_with(|first: char| first.is_ascii_digit())
            {
                return Err(Error::value(
                    "--env",
                    name,
                    "a variable's name consists of letters, digits and _",
                ));
            }
        }
        secrets::check(&self.args, &self.env)
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
            if self.gpus > 0 {
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

    /// Seconds from the signal until the system may kill a node: longer than the save takes.
    pub(crate) fn end_seconds(&self) -> u64 {
        let given = self.words().value("--preemption-grace").and_then(|text| text.parse::<f64>().ok());
        given.map_or(self.grace_seconds, |seconds| seconds.ceil() as u64) + END_SECONDS
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

    /// The folder of results, as given.
    pub fn out(&self) -> Option<&str> {
        self.words().value("--out")
    }

    /// This job with its results, given as `gs://bucket/path`, in a folder, and its checkpoints there if they are nowhere else.
    pub(crate) fn with_out(&self, folder: String, checkpoints: String) -> Self {
        let mut args = self.words().replaced("--out", folder);
        if !args.iter().any(|word| word.contains("checkpoint.dir=")) {
            let end = self.words().own().len();
            args.splice(end..end, ["--set".into(), format!("checkpoint.dir={checkpoints}")]);
        }
        Self { args, ..self.clone() }
    }

    /// Also under the names that `cargo xtask dist` gives.
    fn is_brigade(&self) -> bool {
        let name = self.program.rsplit('/').next().unwrap_or_default();
        name == "brigade" || name.starts_with("brigade-")
    }

    fn words(&self) -> Words<'_> {
        Words { all: &self.args, has_subcommand: self.is_brigade() }
    }
}
