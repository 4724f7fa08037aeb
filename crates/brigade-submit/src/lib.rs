//! Jobs for other people's machines: Vertex AI, Kubernetes (JobSet, Kubeflow's TrainJob and PyTorchJob), Slurm, and hosts reached by ssh.
//!
//! - [`Job`]: what to run on how many nodes. It knows no system. [`Job::check`] finds what is invalid before anything is submitted.
//! - [`System`]: a job for each system: its manifests, from typed structures, and the commands of its own program that submit, follow and
//!   cancel it.
//! - [`submit`]: runs these commands, follows the output, and asks before it cancels.
//!
//! # Invariants
//! - On every system, each node runs one Brigade launcher, which finds its place from the environment that `brigade-launch` reads: the tests give it the
//!   environment that results from a manifest.
//! - A run that was preempted and saved exits with [`PREEMPTED`](brigade_launch::exit::PREEMPTED). Each manifest says so in its system's
//!   terms, gives the ranks longer to save than they need, and restarts the same command, with `--resume auto`.
//! - No secret is part of a manifest or of a command line: manifests name files.
//! - This crate runs the systems' programs and reads what they print; it speaks none of their protocols.

mod error;
mod job;
mod machines;
mod submission;
mod systems;

pub use error::{Error, Result};
pub use job::{Job, job_name};
pub use machines::{GpuKind, Shape};
pub use submission::{
    Answer, Console, Ending, Folders, check_by_system, missing_in_image, missing_in_system, missing_on_hosts,
    missing_program, over_ssh, submit, unknown_image, write,
};
pub use systems::{
    Claim, Commands, Controller, EnvSecret, HostPath, JobState, Kubernetes, Lacking, LeftOver, Manifest,
    Needed, Slurm, Ssh, System, Token, Vertex, line as shell_line,
};
