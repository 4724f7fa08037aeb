//! `cargo xtask check-hf`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::backend::Backend;
use crate::cargo;

/// Flags of `cargo xtask check-hf`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Python that has torch and transformers.
    #[arg(long, value_name = "PATH")]
    python: PathBuf,
}

const SCRIPT: &str = "crates/brigade-cli/tests/check_hf.py";

/// Builds the command, and lets `transformers` make models for it and load what it trains.
pub fn run(args: &Args) -> Result<()> {
    let brigade = Backend::Cpu.build("release")?;
    let mut command = Command::new(&args.python);
    command.arg(cargo::root().join(SCRIPT)).arg("--brigade").arg(&brigade);
    let status = command.status();
    let status = status.with_context(|| format!("--python {}: cannot start it", args.python.display()))?;
    match status.success() {
        true => Ok(()),
        false => bail!("{SCRIPT} ended with {status}"),
    }
}
