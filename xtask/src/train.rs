//! `cargo xtask train`.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::backend::Backend;

/// Builds the release binary, for the backend that the flags ask for, and becomes it, so that signals reach it and its exit code
/// is this command's.
pub fn run(args: &[OsString]) -> Result<Infallible> {
    let program = Backend::asked_for(args).build("release")?;
    let error = Command::new(&program).arg("train").args(args).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
