//! What each system makes of a job.

mod google;
mod kubernetes;
mod shell;
mod slurm;
mod ssh;
mod time;
mod vertex;

pub use kubernetes::{Claim, Controller, EnvSecret, HostPath, Kubernetes};
pub use shell::line;
pub use slurm::Slurm;
pub use ssh::Ssh;
pub use vertex::Vertex;

use std::path::{Component, Path};

use crate::error::{Error, Result};
use crate::job::{Job, bucket_path};

/// A file that describes a job to its system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Its name.
    pub file: String,
    /// Its text.
    pub text: String,
}

impl Manifest {
    /// JSON, which `kubectl` and `gcloud` read as they read YAML.
    fn json(file: &str, value: &impl serde::Serialize) -> Self {
        // Structures of text and numbers are always JSON.
        let text = serde_json::to_string_pretty(value).unwrap_or_default() + "\n";
        Self { file: file.into(), text }
    }
}

/// What the system's own program is to be called with. `{manifest}` stands for the path of the manifest, `{id}` for what `submit` printed last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// Asks the system whether it would take the manifest, without submitting it; none where it cannot be asked.
    pub check: Option<Vec<String>>,
    /// Submits the manifest.
    pub submit: Vec<String>,
    /// Prints what node 0 prints, while it runs.
    pub logs: Vec<String>,
    /// Whether `logs` prints a time before each line with `--timestamps`, and begins at one with `--since-time=`.
    pub logs_have_times: bool,
    /// Prints what becomes of the job.
    pub state: Vec<String>,
    /// Prints why the job does not run yet, where `state` does not.
    pub waiting: Option<Vec<String>>,
    /// Ends the job.
    pub cancel: Vec<String>,
}

/// Something of the system's that a job needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// Its kind and its name.
    pub name: String,
    /// Succeeds if it is there.
    pub command: Vec<String>,
}

/// What a system lacks for a job, a line each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking {
    /// What is not there, or not enough.
    pub missing: Vec<String>,
    /// What could not be found out, and why.
    pub unknown: Vec<String>,
    /// What is there, but not as it should be.
    pub notes: Vec<String>,
}

/// How to look for objects that have a job's name before it is submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOver {
    /// Prints their kinds and names, as in `KIND/NAME`; nothing if there are none.
    pub find: Vec<String>,
    /// Deletes them, with these names after it.
    pub delete: Vec<String>,
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// It waits or runs.
    Active,
    /// It is done.
    Done,
    /// It failed permanently.
    Failed,
    /// Its system ended it, and may start it again; a system that does not leaves it so.
    Ended,
    /// Somebody cancelled it.
    Cancelled,
}

/// Where a node finds the secret that all ranks know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    /// A file on each node.
    File(String),
    /// The job makes one for itself.
    Random,
}

/// A system that takes jobs and runs them.
pub trait System {
    /// Its name, as `--to` has it.
    fn name(&self) -> &'static str;

    /// What this system needs and was not given, each as [`Error::Missing`].
    fn missing(&self, job: &Job) -> Vec<Error> {
        let _ = job;
        Vec::new()
    }

    /// Checks what this system does not allow, after [`Job::check`].
    ///
    /// # Errors
    /// If the system cannot run such a job.
    fn check(&self, job: &Job) -> Result<()>;

    /// The job as the system reads it.
    fn manifests(&self, job: &Job) -> Vec<Manifest>;

    /// Whether its program does not get a variable of this process, by its name, when it checks or submits a job.
    fn hides(&self, variable: &str) -> bool {
        let _ = variable;
        false
    }

    /// What the job needs that is there before it, if the system can be asked.
    fn needed(&self, job: &Job) -> Vec<Needed> {
        let _ = job;
        Vec::new()
    }

    /// The command that prints the quotas that the job must keep to, if the system can be asked for them.
    fn quotas(&self) -> Option<Vec<String>> {
        None
    }

    /// What of a job does not fit into the quotas that this command printed.
    fn over_quotas(&self, job: &Job, printed: &str) -> Lacking {
        let _ = (job, printed);
        Lacking::default()
    }

    /// How to look for what must not be there before the job is submitted, where submitting would not find it, or make only a part of the
    /// job.
    fn left_over(&self, job: &Job) -> Option<LeftOver> {
        let _ = job;
        None
    }

    /// How its own program is called.
    fn commands(&self, job: &Job) -> Commands;

    /// What the output of [`Commands::state`] means.
    fn state_of(&self, text: &str) -> JobState;

    /// Why a job does not run yet, from the outputs of [`Commands::state`] and [`Commands::waiting`], if they say so.
    fn waits_for(&self, state: &str, waiting: &str) -> Option<String> {
        let _ = (state, waiting);
        None
    }

    /// After how many seconds the system ends the job for good, if it does.
    fn time_limit(&self) -> Option<u64> {
        None
    }
}

/// The words of a command.
pub(crate) fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_owned()).collect()
}

/// Refuses nodes that come and go where the system starts all of them, or none.
fn not_elastic(job: &Job, system: &str) -> Result<()> {
    if job.least_nodes.is_none() {
        return Ok(());
    }
    let allowed = format!(
        "{system} starts as many nodes each time; give one number, or use --to ssh, whose hosts may come and go"
    );
    Err(Error::value("--nodes", job.node_count(), allowed))
}

/// Refuses a path that leaves its folder again: nobody sees from it what it is in.
fn no_parents(option: &str, path: &str) -> Result<()> {
    match Path::new(path).components().any(|part| part == Component::ParentDir) {
        true => Err(Error::value(option, path, "it must have no part ..; give the path that it leads to")),
        false => Ok(()),
    }
}

/// Refuses buckets where a command names files and folders that the nodes read; `shared` says which it may name. Results may go to a bucket.
fn no_buckets(job: &Job, shared: &str) -> Result<()> {
    for (flag, path) in job.paths() {
        if bucket_path(flag, path)?.is_some() {
            let allowed = match flag {
                "--out" | "--resume" => continue,
                "--config" => format!("give a file {shared}"),
                "--model" => {
                    format!(
                        "models are read from folders: give one {shared}, or the name of a model on the hub"
                    )
                }
                _ => format!("give a folder {shared}"),
            };
            return Err(Error::value(flag, path, allowed));
        }
    }
    Ok(())
}
