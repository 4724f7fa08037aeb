//! `cargo xtask book`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::test::Runner;

/// Flags of `cargo xtask book`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only test the code and the commands of the pages, without building HTML.
    #[arg(long, conflicts_with = "reference")]
    test: bool,
    /// Only write `reference.md` again, from the types of the settings.
    #[arg(long)]
    reference: bool,
}

/// Tells the test of the settings' page to write it.
const WRITE_REFERENCE: &str = "BRIGADE_WRITE_REFERENCE";

/// Tests the pages, then builds them.
pub fn run(args: &Args) -> Result<()> {
    let runner = Runner::installed();
    if args.reference {
        return cargo::run(runner.command().args(tests("reference")).env(WRITE_REFERENCE, "1"));
    }
    cargo::run(cargo::command(&["test", "--doc"]).args(cargo::WORKSPACE).arg("docs/book"))?;
    cargo::run(runner.command().args(tests("book")))?;
    if args.test {
        return Ok(());
    }
    let mdbook = mdbook()?;
    let folder = cargo::root().join("docs/book");
    let status = Command::new(&mdbook).arg("build").arg(&folder).status();
    let status = status.with_context(|| format!("cannot start {}", mdbook.display()))?;
    if !status.success() {
        bail!("mdbook ended with {status}");
    }
    println!("{}", cargo::root().join("target/book/index.html").display());
    Ok(())
}

/// The tests of the program with this word in their names: with its features, and none of the other programs' tests built.
fn tests(name: &str) -> [&str; 8] {
    ["-p", "brigade-cli", "--features", cargo::FEATURES, "--bins", "--test", "command", name]
}

/// The mdbook on the path, or one of the workspace's own, which is built the first time.
fn mdbook() -> Result<PathBuf> {
    let runs = |program: &Path| Command::new(program).arg("--version").output().is_ok();
    let tools = cargo::root().join("target/tools");
    let places = [PathBuf::from("mdbook"), tools.join("bin/mdbook")];
    if let Some(found) = places.iter().find(|program| runs(program)) {
        return Ok(found.clone());
    }
    eprintln!("mdbook is not installed; building it in {}, which takes minutes", tools.display());
    cargo::run(cargo::command(&["install", "mdbook", "--locked", "--root"]).arg(&tools))?;
    Ok(places[1].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_tested_with_the_features_of_all_tests() {
        let mut command = Runner::Nextest.command();
        command.args(tests("book"));
        assert_eq!(
            cargo::shown(&command),
            "cargo nextest run -p brigade-cli --features brigade-cli/object-store --bins --test command book"
        );
    }
}
