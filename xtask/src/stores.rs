//! `cargo xtask test-stores`.
//!
//! The servers are programs of Python's package index, in an environment of their own below the folder that cargo builds in.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo;
use crate::test::{Runner, Workspace};

/// Versions of the servers, and of all that they need.
const REQUIREMENTS: &str = "xtask/stores.txt";

/// By this variable the tests find the Python that has the servers.
pub const PYTHON: &str = "BRIGADE_STORES_PYTHON";

/// What nextest calls the tests: those of brigade-store are a binary, the others modules.
const FILTER: &str = "binary(=real_stores) | test(/real_stores::/)";

/// The binaries that they are in.
const BINARIES: [&str; 8] =
    ["--test", "real_stores", "--test", "checkpoint", "--test", "lease", "--test", "command"];

/// Flags of `cargo xtask test-stores`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Python 3.10 or later that can make virtual environments.
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
    /// Passed on to `cargo nextest run`, or to `cargo test` if nextest is not installed.
    #[arg(last = true)]
    args: Vec<OsString>,
}

/// Installs the servers where they are missing, and runs the tests.
pub fn run(args: &Args) -> Result<()> {
    let python = install(&args.python, &Workspace::read()?.target)?;
    let crates = ["-p", "brigade-store", "-p", "brigade-checkpoint", "-p", "brigade-cli"];
    let selection = [&crates[..], &["--features", cargo::FEATURES]].concat();
    let mut command = cargo::command(&tests(Runner::installed(), &selection));
    cargo::run(command.env(PYTHON, python).args(&args.args))
}

/// The arguments for cargo, with packages and features.
pub fn tests<'a>(runner: Runner, selection: &[&'a str]) -> Vec<&'a str> {
    match runner {
        Runner::Nextest => {
            [&["nextest", "run"], selection, &BINARIES, &["--run-ignored", "only", "--filterset", FILTER]]
                .concat()
        }
        // They change the environment of their process.
        Runner::Cargo => {
            [&["test"], selection, &BINARIES, &["--", "--ignored", "--test-threads", "1"]].concat()
        }
    }
}

/// Makes the environment below `target`, unless it is there in these versions; its Python.
///
/// # Errors
/// Where `python` does not start, cannot make environments, or its package index does not give the packages.
pub fn install(python: &Path, target: &Path) -> Result<PathBuf> {
    let path = cargo::root().join(REQUIREMENTS);
    let wanted = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let folder = target.join("test-stores");
    let (installed, own) = (folder.join("installed.txt"), folder.join("bin/python"));
    // Of another system's Python, nothing would start.
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) && says(&own, &["--version"]).is_ok() {
        return Ok(own);
    }
    eprintln!("installing the packages of {REQUIREMENTS} into {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let place = folder.display().to_string();
    says(python, &["-m", "venv", &place]).with_context(|| {
        format!("{} makes no virtual environment (Debian: python3-venv)", python.display())
    })?;
    let list = path.display().to_string();
    let pip =
        "-m pip install --quiet --disable-pip-version-check --no-input --only-binary :all: --retries 1 -r";
    let pip: Vec<_> = pip.split(' ').chain([list.as_str()]).collect();
    says(&own, &pip).with_context(|| format!("pip does not install {REQUIREMENTS}"))?;
    fs::write(&installed, wanted).with_context(|| installed.display().to_string())?;
    Ok(own)
}

/// Runs a Python; its error is what it said.
fn says(python: &Path, args: &[&str]) -> Result<()> {
    let output = Command::new(python).args(args).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {}", python.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = install(Path::new("no-such-python"), folder.path()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("no-such-python") && error.contains("python3-venv"), "{error}");
        assert!(!folder.path().join("test-stores/installed.txt").exists());
    }

    #[test]
    fn every_package_has_one_version() {
        let text = fs::read_to_string(cargo::root().join(REQUIREMENTS)).unwrap();
        let packages: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(packages.iter().all(|package| package.matches("==").count() == 1), "{packages:?}");
        assert!(packages.iter().any(|package| package.starts_with("moto==")), "{packages:?}");
    }

    #[test]
    fn the_tests_are_chosen_by_name_or_run_alone() {
        let nextest = tests(Runner::Nextest, &["-p", "brigade-store"]).join(" ");
        assert!(nextest.starts_with("nextest run -p brigade-store --test real_stores"), "{nextest}");
        assert!(nextest.ends_with(FILTER), "{nextest}");
        let cargo = tests(Runner::Cargo, &["-p", "brigade-store"]).join(" ");
        assert!(cargo.ends_with("-- --ignored --test-threads 1"), "{cargo}");
    }
}
