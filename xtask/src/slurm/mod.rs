//! `cargo xtask test-slurm`: jobs of a Slurm that runs on this machine alone.
//!
//! Two nodes, with a `slurmd` each, take jobs that `brigade submit --render` wrote. What they train must have the bytes of one process, also after a preemption and a node that
//! failed; at the end of a job's time, its ranks are told to save, and it starts again.

mod checks;
mod cluster;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::backend::Backend;
use checks::Checks;
use cluster::Cluster;

/// Options of `cargo xtask test-slurm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The program to test [default: a new build].
    #[arg(long, value_name = "FILE")]
    brigade: Option<PathBuf>,
}

/// Starts Slurm, runs the checks and ends it.
pub fn run(args: &Args) -> Result<()> {
    cluster::check_programs()?;
    let brigade = match &args.brigade {
        Some(given) => given.canonicalize().with_context(|| given.display().to_string())?,
        None => Backend::Cpu.build("dev")?,
    };
    let cluster = Cluster::start()?;
    let checks = Checks::new(&cluster, brigade)?;
    for (name, check) in Checks::ALL {
        let begin = std::time::Instant::now();
        check(&checks).with_context(|| format!("{name}\n{}", cluster.logs()))?;
        println!("{name}: {:.0} s", begin.elapsed().as_secs_f64());
    }
    Ok(())
}
