//! Jobs for other people's machines: Vertex AI, Kubernetes (JobSet, Kubeflow's TrainJob and PyTorchJob), Slurm, and hosts reached by ssh.
//!
//! - [`Job`]: what is to run on how many nodes. It knows no system. [`Job::check`] finds what cannot be, before anything is submitted.
//! - [`System`]: what each system makes of a job: its manifests, from typed structures, and the commands of its own program that submit, follow
//!   and cancel it.
//! - [`submit`]: runs these commands, follows the output, and asks before it cancels.
//!
//! # Invariants
//! - On every system each node runs one launcher of Brigade, which finds its place by what `brigade-launch` reads: the tests feed it the environment that a
//!   manifest leads to.
//! - A run that was preempted and saved exits with [`PREEMPTED`](brigade_launch::exit::PREEMPTED). Each manifest says so in its system's
//!   terms, gives the ranks longer to save than they take, and starts the same command again, with `--resume auto`.
//! - No secret is part of a manifest or of a command line: manifests name files.
//! - This crate runs the programs of the systems and reads what they print; it speaks no protocol of theirs.

mod error;
mod job;
mod machines;
mod submission;
mod systems;

pub use error::{Error, Result};
pub use job::{Job, job_name};
pub use machines::{GpuKind, Shape};
pub use submission::{Answer, Console, Ending, missing_program, over_ssh, submit, write};
pub use systems::{
    Claim, Commands, Controller, JobState, Kubernetes, Manifest, Slurm, Ssh, System, Token, Vertex,
};
