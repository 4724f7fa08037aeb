//! `cargo xtask train`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;

/// Builds the release binary and becomes it, so that signals and exit codes are its own.
pub fn run(args: &[OsString]) -> Result<Infallible> {
    let program = cargo::build(&["build", "--release", "-p", "brigade-cli"])?;
    let error = Command::new(&program).arg("train").args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
