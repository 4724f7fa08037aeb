//! `cargo xtask check-hf`, `cargo xtask check-llama-cpp` and `cargo xtask check-minilm`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
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

/// Flags of `cargo xtask check-llama-cpp`.
#[derive(Debug, clap::Args)]
pub struct LlamaCppArgs {
    #[command(flatten)]
    common: Args,
    /// A source tree of llama.cpp.
    #[arg(long, value_name = "DIR")]
    llama_cpp: PathBuf,
}

const LLAMA_CPP: &str = "crates/brigade-cli/tests/check_llama_cpp.py";

/// Flags of `cargo xtask check-minilm`.
#[derive(Debug, clap::Args)]
pub struct MiniLmArgs {
    #[command(flatten)]
    common: Args,
    /// The folder that the model is downloaded into, once [default: brigade/ in the user's cache folder].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

const MINILM: &str = "crates/brigade-cli/tests/check_minilm.py";

/// Builds the command, and lets `transformers` make models for it and load what it trains.
pub fn run(args: &Args) -> Result<()> {
    let logits = example("logits")?;
    args.script(SCRIPT, &[("--logits", &logits)])
}

/// Trains models of each family that llama.cpp loads, and compares what it computes with them.
pub fn run_llama_cpp(args: &LlamaCppArgs) -> Result<()> {
    args.common.script(LLAMA_CPP, &[("--llama-cpp", &args.llama_cpp)])
}

/// Builds an example of `brigade-models`.
fn example(name: &str) -> Result<PathBuf> {
    cargo::build(&["build", "--profile", "release", "-p", "brigade-models", "--example", name])
}

/// Compares a real encoder with `transformers`, and trains it on several meshes.
pub fn run_minilm(args: &MiniLmArgs) -> Result<()> {
    let sentences = example("sentences")?;
    let cache = match &args.cache {
        Some(cache) => cache.clone(),
        None => user_cache().context("there is no XDG_CACHE_HOME and no HOME; give a folder with --cache")?,
    };
    let given: [(&str, &Path); 3] =
        [("--sentences", &sentences), ("--root", cargo::root()), ("--cache", &cache)];
    args.common.script(MINILM, &given)
}

fn user_cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(caches.join("brigade"))
}

impl Args {
    /// Runs a script with the command and further paths.
    fn script(&self, script: &str, further: &[(&str, &Path)]) -> Result<()> {
        let further = further.iter().flat_map(|(flag, path)| [flag.as_ref(), path.as_os_str()]);
        run_script(&self.python, script, further)
    }
}

/// Runs a script of the repository with the command, which is built for it, and further arguments.
pub fn run_script<'a>(
    python: &Path,
    script: &str,
    further: impl IntoIterator<Item = &'a OsStr>,
) -> Result<()> {
    let brigade = Backend::Cpu.build("release")?;
    let mut command = Command::new(python);
    command.arg(cargo::root().join(script)).arg("--brigade").arg(&brigade).args(further);
    let status =
        command.status().with_context(|| format!("--python {}: cannot start it", python.display()))?;
    match status.success() {
        true => Ok(()),
        false => bail!("{script} ended with {status}"),
    }
}
